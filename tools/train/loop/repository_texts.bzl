"""repository_texts: the headers of this repository's libraries as one text."""

def _repository_texts_impl(ctx):
    headers = depset(transitive = [
        dep[CcInfo].compilation_context.headers
        for dep in ctx.attr.deps
    ]).to_list()

    # Excludes external repositories and generated files.
    own = {f.short_path: f for f in headers if f.is_source and not f.short_path.startswith("../")}
    files = [own[path] for path in sorted(own)]
    out = ctx.actions.declare_file(ctx.label.name + ".txt")
    arguments = ctx.actions.args()
    arguments.add(out)
    arguments.add_all(files)
    ctx.actions.run_shell(
        inputs = files,
        outputs = [out],
        arguments = [arguments],
        command = "out=$1; shift; cat \"$@\" | head -c %d > \"$out\"" % ctx.attr.most_bytes,
        mnemonic = "RepositoryTexts",
    )
    return DefaultInfo(files = depset([out]), runfiles = ctx.runfiles([out]))

repository_texts = rule(
    implementation = _repository_texts_impl,
    doc = "A text file of the headers of `deps` and of all that they depend on, in the order of their paths.",
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "most_bytes": attr.int(default = 4 << 20),
    },
)
