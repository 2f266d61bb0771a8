"""pinned_source: an http_archive with a second way in, the distribution's source package.

The bytes are pinned by sha256 whichever way they come. Order: Bazel's repository cache and --distdir, upstream's
address, `apt-get source` on Debian and Ubuntu (private lists: no root, nothing installed, the system's apt state
untouched). The archive stays in the repository as @NAME//distfile, so that tests can rebuild offline from it.
"""

# Turns the machine's binary package sources into source ones, in this directory alone.
_PREPARE_APT = """
mkdir -p parts lists/partial cache/archives/partial
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ ! -f "$list" ] || sed -n 's/^deb /deb-src /p' "$list" > "parts/$(basename "$list" .list).list"
done
for list in /etc/apt/sources.list.d/*.sources; do
  [ ! -f "$list" ] || sed 's/^Types:.*/Types: deb-src/' "$list" > "parts/$(basename "$list")"
done
cat > apt.conf <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$PWD/parts";
Dir::State::Lists "$PWD/lists";
Dir::Cache "$PWD/cache";
APT::Sandbox::User "";
Debug::NoLocking "true";
END
command -v apt-get >/dev/null || { echo "apt-get: not found" >&2; exit 0; }
APT_CONFIG=$PWD/apt.conf apt-get -qq update || true
"""

def _apt_sources_impl(ctx):
    result = ctx.execute(["sh", "-c", _PREPARE_APT], timeout = 300)
    ctx.file("update.log", result.stderr)
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "")

apt_sources = repository_rule(
    doc = "Package lists of the distribution's sources, made once and only when upstream is out of reach.",
    implementation = _apt_sources_impl,
)

_APT_DOWNLOAD = """
mkdir apt && cd apt && apt-get -qq source --download-only "$0"
ls "$PWD/$1" 2>/dev/null
"""

def _download_from_distribution(ctx, sha256):
    lists = ctx.path(Label("@tessera_apt_sources//:BUILD")).dirname
    result = ctx.execute(
        ["sh", "-c", _APT_DOWNLOAD, ctx.attr.distribution_package, ctx.attr.distribution_file],
        environment = {"APT_CONFIG": str(lists.get_child("apt.conf"))},
        timeout = 300,
    )
    path = result.stdout.strip()
    if not path:
        fail("\n".join([
            "@{}: its source archive could not be fetched.".format(ctx.name),
            "  tried: " + ", ".join(ctx.attr.urls),
            "  tried: apt-get source {}: {}".format(ctx.attr.distribution_package, result.stderr.strip()),
            "  package lists: " + ctx.read(lists.get_child("update.log")).strip(),
            "  to fix it: connect this machine once, or put {} (sha256 {}) in a folder named by --distdir=FOLDER.".format(
                ctx.attr.urls[0].split("/")[-1],
                ctx.attr.sha256,
            ),
        ]))
    ctx.download(["file://" + path], _archive(ctx.attr.distribution_file), sha256)
    ctx.delete("apt")

def _archive(file_name):
    return "distfile/" + file_name

def _pinned_source_impl(ctx):
    attr = ctx.attr
    file_name = attr.urls[0].split("/")[-1]
    strip_prefix = attr.strip_prefix
    got = ctx.download(attr.urls, _archive(file_name), attr.sha256, allow_fail = True)
    if not got.success:
        sha256 = attr.distribution_sha256 or attr.sha256
        strip_prefix = attr.distribution_strip_prefix or strip_prefix
        file_name = attr.distribution_file

        # An address that leads nowhere: this asks the repository cache and --distdir alone.
        got = ctx.download(["file:///nonexistent/" + file_name], _archive(file_name), sha256, allow_fail = True)
        if not got.success:
            _download_from_distribution(ctx, sha256)
    ctx.extract(_archive(file_name), stripPrefix = strip_prefix)
    ctx.file("distfile/BUILD", """filegroup(
    name = "distfile",
    srcs = ["{}"],
    visibility = ["//visibility:public"],
)
""".format(file_name))
    if attr.build_file:
        ctx.symlink(attr.build_file, "BUILD.bazel")
    for command in attr.patch_cmds:
        result = ctx.execute(["sh", "-c", command])
        if result.return_code:
            fail("@{}: {}: {}".format(ctx.name, command, result.stderr))

pinned_source = repository_rule(
    doc = "An upstream source archive, pinned by sha256.",
    implementation = _pinned_source_impl,
    attrs = {
        "urls": attr.string_list(mandatory = True),
        "sha256": attr.string(mandatory = True),
        "strip_prefix": attr.string(),
        "distribution_package": attr.string(mandatory = True, doc = "The Debian source package of this version."),
        "distribution_file": attr.string(mandatory = True, doc = "The name of its upstream archive."),
        "distribution_sha256": attr.string(doc = "Where the distribution repacked the archive."),
        "distribution_strip_prefix": attr.string(doc = "Where the distribution repacked the archive."),
        "build_file": attr.label(allow_single_file = True),
        "patch_cmds": attr.string_list(),
    },
)
