#!/usr/bin/env python3
"""Builds the documentation as a site with search: all pages, all flags of the tools, and the references of C++ and Python.

    pip install mkdocs-material mkdocstrings[python] ruff && apt-get install doxygen
    ./bazelw build //tools:tessera && python3 tools/docs/build_site.py OUTPUT

The pages are the Markdown files of the repository. Links to other files of the repository lead to copies in the site.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

# The packages of Python, and the modules of the reference.
PACKAGES = {"tessera": "tools/python/tessera", "tessera_torch": "tools/python/torch/package"}
MODULES = [
    *("tessera." + name for name in "training topology pipeline plan estimate launch checkpoint optim torch_optim errors".split()),
    "tessera_torch",
    "tessera_torch.zero",
]

# Sections of the navigation: title and page; a title alone begins a section, and a directory stands for its README.md.
NAVIGATION = [
    ("Get started", None),
    ("Tessera", "README.md"),
    ("Training", "docs/training.md"),
    ("Moving from other trainers", "docs/moving.md"),
    ("Python", "tools/python"),
    ("PyTorch", "tools/python/torch"),
    ("Concepts", None),
    ("Architecture", "docs/architecture.md"),
    ("ZeRO", "docs/zero.md"),
    ("Collective algorithms", "docs/collective_algorithms.md"),
    ("Devices", "docs/devices.md"),
    ("Reliability", "docs/reliability.md"),
    ("Modules", None),
    *((module, module) for module in ("topology", "collectives", "pipeline", "tensor_parallel", "zero3", "offload", "base")),
    ("Tools", None),
    ("All tools", "tools"),
    *((tool, "tools/" + tool) for tool in ("train", "plan", "checkpoint", "launch", "comm_bench", "generate", "install", "c")),
    ("Reference", None),
    ("Flags", "flags.md"),
    ("Metrics", "docs/metrics.md"),
    ("Compatibility", "docs/compatibility.md"),
    ("C++ headers", "api/annotated.html"),
    ("GPU measurements", "docs/gpu.md"),
    ("Changes", "CHANGELOG.md"),
    ("Contributing", "CONTRIBUTING.md"),
    ("Python modules", None),
    *((module, f"python/{module}.md") for module in MODULES),
]

CONFIGURATION = """site_name: Tessera
theme:
  name: material
  features: [navigation.tabs, navigation.indexes, search.suggest, content.code.copy]
  font: false
plugins:
  - search
  - mkdocstrings:
      handlers:
        python:
          paths: [python]
          options: {show_source: false, show_root_heading: true, show_root_full_path: true, heading_level: 1,
                    docstring_section_style: list, members_order: source, separate_signature: true,
                    show_signature_annotations: true}
markdown_extensions: [admonition, tables, toc, pymdownx.highlight, pymdownx.superfences]
validation: {omitted_files: ignore, links: {not_found: warn, anchors: warn}}
nav:
"""

DOXYGEN = """PROJECT_NAME = Tessera
INPUT = base topology collectives pipeline tensor_parallel zero3 offload tools/c/tessera.h
RECURSIVE = YES
FILE_PATTERNS = *.h
EXCLUDE_PATTERNS = */testing/* */examples/*
EXTRACT_ALL = YES
GENERATE_LATEX = NO
QUIET = YES
WARNINGS = NO
HAVE_DOT = NO
SEARCHENGINE = YES
INPUT_FILTER = "sed -E -f %(filter)s"
HTML_OUTPUT = %(output)s
"""

# Makes comments before declarations, and the first one of a file, those that Doxygen reads; indented lines are code.
COMMENTS = r"""1s,^//,/// \file\n///,
s,^( *)//   +,\1///       ,
s,^( *)//([^/]|$),\1///\2,
"""


def git_files():
    return subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split()


def copy_pages(directory):
    """Copies the pages, and the files to which they link."""
    files = git_files()
    needed = {path for path in files if path.endswith(".md")}
    for page in sorted(needed):
        with open(page, encoding="utf-8") as file:
            for target in re.findall(r"\]\(([^)#\s]+)", file.read()):
                path = os.path.normpath(os.path.join(os.path.dirname(page), target))
                needed |= {path} & set(files)
    for path in needed:
        os.makedirs(os.path.dirname(os.path.join(directory, path)), exist_ok=True)
        shutil.copy(path, os.path.join(directory, path))
    # Links to directories mean their READMEs.
    for page in needed:
        if page.endswith(".md"):
            link_readmes(directory, page)


def link_readmes(directory, page):
    def target_of(match):
        path = os.path.normpath(os.path.join(os.path.dirname(page), match[1]))
        return f"]({match[1].rstrip('/')}/README.md)" if os.path.isfile(os.path.join(path, "README.md")) else match[0]

    copy = os.path.join(directory, page)
    with open(copy, encoding="utf-8") as file:
        text = file.read()
    with open(copy, "w", encoding="utf-8") as file:
        file.write(re.sub(r"\]\(([^)#\s:]+)\)", target_of, text))


def write_flags(directory):
    """Writes the page of all flags, from the help of the tools."""
    program = os.path.join("bazel-bin", "tools", "tessera")
    names = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    with open(os.path.join(directory, "flags.md"), "w", encoding="utf-8") as page:
        page.write("# Flags\n\n")
        for tool in re.search(r"the tools ([^;]*);", names)[1].split(", "):
            argument = "--help=all" if tool == "train" else "--help"
            help_text = subprocess.run([program, tool, argument], check=True, capture_output=True, text=True).stdout
            page.write(f"## tessera {tool}\n\n```text\n{help_text}```\n\n")


def write_modules(work, directory):
    """Writes the pages of the Python modules, which mkdocstrings fills from their sources."""
    os.mkdir(os.path.join(work, "python"))
    for name, source in PACKAGES.items():
        os.symlink(os.path.abspath(source), os.path.join(work, "python", name))
    os.mkdir(os.path.join(directory, "python"))
    for module in MODULES:
        with open(os.path.join(directory, "python", module + ".md"), "w", encoding="utf-8") as page:
            page.write(f"::: {module}\n")


def navigation():
    lines = []
    for title, page in NAVIGATION:
        if page is None:
            lines.append(f"  - {title}:")
        else:
            lines.append(f"      - {title}: {page if '.' in page else page + '/README.md'}")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit("build_site.py: expected the directory of the site, such as /tmp/site")
    output = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        pages = os.path.join(work, "pages")
        os.mkdir(pages)
        copy_pages(pages)
        write_flags(pages)
        write_modules(work, pages)
        comments = os.path.join(work, "comments.sed")
        with open(comments, "w", encoding="utf-8") as file:
            file.write(COMMENTS)
        with open(os.path.join(work, "Doxyfile"), "w", encoding="utf-8") as file:
            file.write(DOXYGEN % {"filter": comments, "output": os.path.join(pages, "api")})
        subprocess.run(["doxygen", file.name], check=True)
        with open(os.path.join(work, "mkdocs.yml"), "w", encoding="utf-8") as file:
            file.write(CONFIGURATION + navigation() + "docs_dir: pages\n")
        subprocess.run(["mkdocs", "build", "--quiet", "--strict", "-f", file.name, "-d", output], check=True)
    print(f"the site is in {output}; python3 -m http.server -d {output} shows it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
