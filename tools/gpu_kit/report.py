"""Tables of measured and predicted figures, in Markdown, from the results of run_kit.py."""

import math
import os
import re

import predictions
import workloads

BEGIN, END = "<!-- gpu_kit: begin -->", "<!-- gpu_kit: end -->"
_DEFAULT_PEAK = workloads.PEAK_FLOPS["H200"]
_KERNELS_SHOWN = 20


def figures_of(content):
    """The figures that are compared, with the predictions for the card of these results."""
    return predictions.figures(predictions.card_of(", ".join(content["machine"].get("gpus") or [])))


def merged(contents):
    """Merges the results of several calls on equal cards; later results of an item replace earlier ones."""
    result = {**contents[-1], "stages": {}}
    for content in contents:
        if content["machine"].get("gpus") != result["machine"].get("gpus"):
            raise ValueError("the results are of %s and of %s: report each by itself" % (
                content["machine"].get("gpus"), result["machine"].get("gpus")))
        for stage, items in content["stages"].items():
            result["stages"].setdefault(stage, {}).update(items)
    return result


def values_of(content, stage, item):
    """The values that an item has measured, whether it passed or failed."""
    return content["stages"].get(stage, {}).get(item, {}).get("values", {})


def outcomes(content, *stages):
    """Yields (stage, item, outcome) for stages that have results."""
    return [(stage, item, outcome) for stage in stages for item, outcome in content["stages"].get(stage, {}).items()]


def peak(content):
    gpus = content["machine"].get("gpus") or [""]
    return workloads.peak_flops(gpus[0]) or _DEFAULT_PEAK


def rate_of(rates, unit, begins, ends=""):
    """The total operations of the entries with these names over their total time; None if there are none."""
    chosen = [rate for rate in rates if rate["name"].startswith(begins) and rate["name"].endswith(ends) and unit in rate]
    if not chosen:
        return None
    if "seconds" not in chosen[0]:
        return chosen[0][unit]
    return sum(rate[unit] * rate["seconds"] for rate in chosen) / sum(rate["seconds"] for rate in chosen)


def products(rates, model):
    return rate_of([rate for rate in rates if not re.search("attention|cuDNN", rate["name"])], "teraflops", model + " ")


def copies(content):
    """The best rate for each direction."""
    best = {}
    for row in values_of(content, "ceilings", "pcie").get("rates", []):
        best[row["operation"]] = max(best.get(row["operation"], 0), row["gigabytes_per_second"])
    return best


def fastest(content, stage):
    """The fastest variant of a model; None if none ran."""
    runs = [outcome["values"] for _, _, outcome in outcomes(content, stage) if outcome["values"].get("flops")]
    return max(runs, key=lambda run: run["tokens_per_second"], default=None)


def has_broken(content, stage, key):
    """True if an item of a stage failed before it had this value."""
    return any(outcome["status"] == "failed" and key not in outcome["values"] for _, _, outcome in outcomes(content, stage))


def worst(content, stage, key):
    """The largest value of a stage's items; NaN if an item failed without a value, None if there are no values."""
    values = [outcome["values"][key] for _, _, outcome in outcomes(content, stage) if key in outcome["values"]]
    return math.nan if has_broken(content, stage, key) else max(values, default=None)


def different_repeats(content):
    """The number of pairs of runs with different bits; NaN if a run failed, None if no pair is complete."""
    if has_broken(content, "repeat", "losses"):
        return math.nan
    pairs = {}
    for _, item, outcome in outcomes(content, "repeat"):
        if outcome["status"] == "passed":
            pairs.setdefault(item.rsplit("-", 1)[0], []).append(outcome["values"])
    whole = [pair for pair in pairs.values() if len(pair) == 2]
    return sum(first != second for first, second in whole) if whole else None


def speed_ratio(content, faster, slower):
    """The ratio of the tokens/s of two (stage, item) pairs; None if one is missing."""
    speeds = [values_of(content, *place).get("tokens_per_second") for place in (faster, slower)]
    return speeds[0] / speeds[1] if all(speeds) else None


def offload_loss(content):
    if content["machine"].get("device", "cuda") != "cuda":
        return None  # The speed of an emulation says nothing about a GPU.
    ratio_to_device = speed_ratio(content, ("offload", "optimizer"), ("offload", "none"))
    return None if ratio_to_device is None else 1 - ratio_to_device


def different_variants(content):
    """The largest relative difference between losses of a stage's runs on equal batches; None without two of them."""
    differences = []
    for stage in STEPS.values():
        runs = [outcome["values"] for _, _, outcome in outcomes(content, stage) if outcome["values"].get("losses")]
        for run in runs[1:]:
            if run["tokens_per_step"] == runs[0]["tokens_per_step"]:
                differences += [abs(a - b) / abs(b) for a, b in zip(run["losses"], runs[0]["losses"])]
    return max(differences, default=None)


def different_graphs(content):
    """The steps whose losses or gradient norms CUDA graphs have changed; None without both runs."""
    off, on = (values_of(content, "graphs", name) for name in ("off", "on"))
    if not off.get("losses") or not on.get("losses"):
        return None
    return sum(pair[0] != pair[1] for key in ("losses", "gradient_norms") for pair in zip(off[key], on[key]))


def count_of(content, stage, key):
    """The sum of a number, or of the lengths of a list, over a stage's items; NaN if an item failed without a value."""
    found = [outcome["values"][key] for _, _, outcome in outcomes(content, stage) if key in outcome["values"]]
    if has_broken(content, stage, key):
        return math.nan
    return sum(len(value) if isinstance(value, list) else value for value in found) if found else None


# The stage that measures each model's step.
STEPS = {"1.2b": "mfu_1.2b", "8b_16": "mfu_8b_16", "8b": "mfu_8b"}

# The stage that measures a figure, and the item if it is not all of them.
_SOURCES = {
    **{key: ("ceilings", "operations") for key in (
        "copy", "products_8b", "products_1.2b",
        *["attention_%s%d_%s" % (kind, size, way) for kind in ("", "share_") for size in (64, 128)
          for way in ("forward", "backward")])},
    "adamw": ("ceilings", "optimizer"),
    "pcie_up": ("ceilings", "pcie"), "pcie_down": ("ceilings", "pcie"), "pcie_both": ("ceilings", "pcie"),
    **{key + model: (stage,) for model, stage in STEPS.items() for key in ("step_", "mfu_")},
    "variants": ("mfu_1.2b",), "graphs": ("graphs",), "graphs_bits": ("graphs",), "peer": ("peer",),
    "parity_fp8": ("fp8", "parity"), "offload_loss": ("offload",), "collectives": ("collectives",),
}


def total(counts):
    """The sum of the values that are not None; None if all are."""
    there = [count for count in counts if count is not None]
    return sum(there) if there else None


def has_failed(content, stage, item=None):
    return any(outcome["status"] == "failed" for _, name, outcome in outcomes(content, stage) if item in (None, name))


def measured(content):
    """{key of a prediction: value}; None if nothing was measured, NaN if the measurement failed."""
    rates = values_of(content, "ceilings", "operations").get("rates", [])
    adamw = values_of(content, "ceilings", "optimizer").get("rates", [])
    copy = rate_of(rates, "gigabytes_per_second", "copy")
    pcie = copies(content)
    rows = values_of(content, "collectives", "one_gpu").get("rows", [])
    slowest = min((row["gigabytes_per_second"] for row in rows), default=None)
    result = {
        "copy": copy,
        "pcie_up": pcie.get("up"), "pcie_down": pcie.get("down"), "pcie_both": pcie.get("both"),
        "products_8b": products(rates, "8B"), "products_1.2b": products(rates, "1.2B"),
        "adamw": rate_of(adamw, "gigabytes_per_second", "AdamW/f32/f32"),
        "parity_fp32": worst(content, "parity_fp32", "difference"),
        "parity_bf16": worst(content, "parity_bf16", "difference"),
        "bias_bf16": worst(content, "parity_bf16", "bias"),
        "parity_fp8": values_of(content, "fp8", "parity").get("difference"),
        "repeats": different_repeats(content),
        "variants": different_variants(content),
        "graphs": speed_ratio(content, ("graphs", "on"), ("graphs", "off")),
        "graphs_bits": different_graphs(content),
        "offload_loss": offload_loss(content),
        "peer": speed_ratio(content, ("mfu_1.2b", "fast"), ("peer", "1.2b-autocast-compiled")),
        "collectives": slowest / copy if slowest and copy else None,
        "tests": count_of(content, "tests", "failed"),
        "sanitizer": total([count_of(content, stage, "errors") for stage in ("memcheck", "racecheck")]),
    }
    for size, model in ((128, "8B"), (64, "1.2B")):
        for way in ("forward", "backward"):
            alone = rate_of(rates, "teraflops", "%s cuDNN %s" % (model, way))
            whole = rate_of(rates, "teraflops", "%s attention %s" % (model, way))
            result["attention_%d_%s" % (size, way)] = alone
            result["attention_share_%d_%s" % (size, way)] = whole / alone if whole and alone else None
    for model, stage in STEPS.items():
        run = fastest(content, stage)
        tokens = 16384 if model == "1.2b" else 8192
        result["step_" + model] = tokens / run["tokens_per_second"] if run else None
        result["mfu_" + model] = run["flops"] / peak(content) if run else None
    for key, value in result.items():
        if value is None and key in _SOURCES and has_failed(content, *_SOURCES[key]):
            result[key] = math.nan
    if result["tests"] == 0 and any(outcome["status"] == "skipped" for _, _, outcome in outcomes(content, "tests")):
        result["tests"] = None
    return result


def form(value):
    if value is None:
        return ""
    if math.isnan(value):
        return "failed"
    if isinstance(value, int) or value == int(value):
        return "%d" % value
    return "%.3g" % value if abs(value) < 100 else "%.0f" % value


def predicted(figure):
    parts = []
    if "range" in figure:
        low, high = figure["range"]
        parts.append(form(low) if low == high else "%s to %s" % (form(low), form(high)))
    if "at_least" in figure:
        parts.append("at least " + form(figure["at_least"]))
    if "at_most" in figure:
        parts.append("at most " + form(figure["at_most"]))
    return "; ".join(parts)


def prediction_table():
    """The predictions for each card, in Markdown, for docs/gpu.md."""
    by_card = [predictions.figures(card) for card in predictions.CARDS]
    rows = [[_named(row[0])] + [predicted(figure) for figure in row] for row in zip(*by_card)
            if any(predicted(figure) for figure in row)]
    return "\n".join(table(["figure", *predictions.CARDS], rows))


def _named(figure):
    return figure["figure"] + (", " + figure["unit"] if figure["unit"] else "")


def ratio(figure, value):
    """The ratio of measured to predicted, relative to the nearer end of the range; 1 inside the range."""
    if value is None or math.isnan(value) or "range" not in figure:
        return ""
    low, high = figure["range"]
    return "%.2f" % (value / low if value < low else value / high if value > high else 1)


def verdict(figure, value):
    """pass, fail or not measured; empty for a prediction without a limit."""
    if value is None:
        return "not measured"
    if math.isnan(value) or value > figure.get("at_most", value) or value < figure.get("at_least", value):
        return "FAIL"
    return "pass" if "at_most" in figure or "at_least" in figure else ""


def failures(content):
    values = measured(content)
    return [figure["key"] for figure in figures_of(content) if verdict(figure, values.get(figure["key"])) == "FAIL"]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows] + [""]


def figure_rows(content):
    values = measured(content)
    return [[_named(figure), form(values.get(figure["key"])),
             predicted(figure), ratio(figure, values.get(figure["key"])), verdict(figure, values.get(figure["key"]))]
            for figure in figures_of(content)]


def summary(content):
    """The table for a terminal."""
    rows = [["figure", "measured", "predicted", "ratio", "limit"]] + figure_rows(content)
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def speed_row(content, name, run):
    share = run["flops"] / peak(content)
    palm = run.get("flops_palm")
    return [name, "%.0f" % run["tokens_per_second"], "%.3f" % run["seconds_per_step"], "%.3f" % share,
            "%.3f" % (palm / peak(content)) if palm else ""]


def speeds(content):
    rows = [speed_row(content, "%s, %s" % (stage, item.replace("_", " ")), outcome["values"])
            for stage, item, outcome in outcomes(content, *STEPS.values(), "fp8", "graphs", "offload", "peer", "peer_8b")
            if outcome["values"].get("flops")]
    if not rows:
        return []
    versions = {outcome["values"].get("torch") for _, _, outcome in outcomes(content, "peer", "peer_8b")} - {None}
    text = ["MFU counts 6 operations a parameter and token and causal attention; the last column counts attention whole,",
            "as publications do." + (" The peer is PyTorch %s." % ", ".join(sorted(versions)) if versions else ""), ""]
    return text + table(["run", "tokens/s", "s/step", "MFU", "MFU, 12 L h s"], rows)


def operations(content):
    rates = values_of(content, "ceilings", "operations").get("rates", [])
    rows = [[rate["name"], "%.1f" % (1e6 * rate["seconds"]),
             "%.0f %s" % ((rate["teraflops"], "Tflop/s") if "teraflops" in rate else
                          (rate["gigabytes_per_second"], "GB/s")), "%.2f" % rate["share_of_peak"]] for rate in rates]
    return table(["operation", "us", "rate", "share of peak"], rows) if rows else []


def collective_rows(content):
    rows = [[row["op"], row["world"], row["bytes"] >> 20, "%.0f" % row["time_us"], "%.0f" % row["gigabytes_per_second"]]
            for row in values_of(content, "collectives", "one_gpu").get("rows", [])]
    return table(["collective", "ranks on one GPU", "MiB", "us", "GB/s read and written"], rows) if rows else []


def kernels(content):
    def percent(value):
        return "" if value is None else "%.0f" % value

    rows = [[kernel["name"], kernel["launches"], "%.1f" % (1e6 * kernel["seconds"]), percent(kernel["dram_percent"]),
             percent(kernel["sm_percent"]), percent(kernel["warps_percent"]), percent(kernel["bank_conflicts"])]
            for kernel in values_of(content, "ncu", "training_step").get("kernels", [])[:_KERNELS_SHOWN]]
    header = ["kernel", "launches", "us", "memory, %", "SM, %", "active warps, %", "bank conflicts"]
    return table(header, rows) if rows else []


def not_passed(content):
    rows = [[stage, item, outcome["status"], outcome.get("reason", "")]
            for stage, item, outcome in outcomes(content, *content["stages"]) if outcome["status"] != "passed"]
    return table(["stage", "item", "status", "reason"], rows) if rows else []


def test_rows(content):
    rows = [[item, outcome["values"].get("passed", ""), len(outcome["values"].get("failed", [])),
             outcome["values"].get("skipped", "")] for _, item, outcome in outcomes(content, "tests")]
    return table(["GPU test", "passed", "failed", "skipped"], rows) if rows else []


def heading(content):
    found = content["machine"]
    smi = found.get("nvidia_smi") or {}
    parts = [found.get("date", ""), ", ".join(found.get("gpus") or ["no GPU"])]
    if found.get("device", "cuda") != "cuda":
        parts.append("a rehearsal with --device=" + found["device"])
    if smi.get("driver_version"):
        parts.append("driver " + smi["driver_version"])
    if smi.get("power.limit"):
        parts.append(smi["power.limit"])
    if found.get("kit"):
        parts.append("commit " + found["kit"])
    return ["Measured by [the GPU kit](../tools/gpu_kit/README.md): " + ", ".join(part for part in parts if part) + ".", ""]


def libraries(content):
    found = values_of(content, "environment", "libraries").get("libraries", {})
    rows = [[name, library.get("version", "missing"), library.get("path", library.get("error"))]
            for name, library in found.items()]
    return table(["library", "version", "path"], rows) if rows else []


def markdown(content):
    lines = heading(content)
    lines += table(["figure", "measured", "predicted", "ratio", "limit"], figure_rows(content))
    for part in (libraries, speeds, operations, collective_rows, kernels, test_rows, not_passed):
        lines += part(content)
    return "\n".join(lines).rstrip() + "\n"


def insert(document, text):
    """The document with the text between its markers. ValueError without them."""
    begin, end = document.find(BEGIN), document.find(END)
    if begin < 0 or end < begin:
        raise ValueError("no lines %s and %s, in this order" % (BEGIN, END))
    return document[:begin + len(BEGIN)] + "\n" + text + document[end:]


def write(contents, docs):
    content = merged(contents)
    if not content["stages"]:
        raise ValueError("no results yet: give the file of a run as --results=FILE")
    text = markdown(content)
    if docs is None:
        print(text, end="")
        return 0
    with open(docs, encoding="utf-8") as file:
        document = file.read()
    try:
        changed = insert(document, text)
    except ValueError as error:
        raise ValueError("--docs=%s: %s" % (docs, error)) from error
    with open(docs + ".part", "w", encoding="utf-8") as file:
        file.write(changed)
    os.replace(docs + ".part", docs)
    return 0
