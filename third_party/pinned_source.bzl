"""pinned_source: an http_archive with a fallback, the distribution's source package; pinned_wheel: the same for a package
of Python, which pip fetches.

The bytes are pinned by sha256 for every origin. The order is: Bazel's repository cache, --distdir, upstream's address if
its host resolves. Then `apt-get source` on Debian and Ubuntu (private lists: no root, nothing installed, the
system's apt state untouched). Without a network: only the repository cache and --distdir. The archive stays in the
repository as @NAME//distfile, so that tests can rebuild offline from it.
"""

# Derives source package lists from the machine's binary ones, in this directory only.
_CONFIGURE_APT = """
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
"""

def _apt_sources_impl(ctx):
    ctx.execute(["sh", "-c", _CONFIGURE_APT])
    ctx.file("WORKSPACE", "")
    ctx.file("BUILD", "")

apt_sources = repository_rule(
    doc = "Where apt keeps the lists of the distribution's sources; filled when the first archive is asked of it.",
    implementation = _apt_sources_impl,
)

# $0: the directory of apt_sources; $1: source package; $2: the archive's name.
_APT_DOWNLOAD = """
command -v apt-get >/dev/null || { echo "no apt-get here" >&2; exit 1; }
export APT_CONFIG="$0/apt.conf"
flock "$0/lock" sh -c '[ -e "$0/updated" ] || { apt-get -qq update && touch "$0/updated"; }' "$0"
mkdir apt && cd apt && apt-get -qq source --download-only "$1"
ls "$PWD/$2" 2>/dev/null
"""

def _archive(file_name):
    return "distfile/" + file_name

def _can_reach(ctx, url):
    """False where the name of the host is unknown here: asking it would only print a warning at every build."""
    host = url.split("/")[2]
    found = ctx.execute(["sh", "-c", "command -v getent >/dev/null || exit 0; getent hosts " + host])
    return found.return_code == 0

def _from_upstream(ctx):
    """Upstream's archive, out of the cache, a --distdir or the network; None where it is in none of them."""
    file_name = ctx.attr.urls[0].split("/")[-1]
    got = ctx.download(ctx.attr.urls, _archive(file_name), ctx.attr.sha256, allow_fail = True)
    return struct(file_name = file_name, strip_prefix = ctx.attr.strip_prefix) if got.success else None

def _from_distribution(ctx, url):
    """The distribution's archive of the same version from `url`; None where it is not there or has other bytes."""
    got = ctx.download(
        [url],
        _archive(ctx.attr.distribution_file),
        ctx.attr.distribution_sha256 or ctx.attr.sha256,
        allow_fail = True,
    )
    return struct(
        file_name = ctx.attr.distribution_file,
        strip_prefix = ctx.attr.distribution_strip_prefix or ctx.attr.strip_prefix,
    ) if got.success else None

def _from_apt(ctx):
    """(archive or None, what apt said)"""
    result = ctx.execute(
        ["sh", "-c", _APT_DOWNLOAD, str(ctx.path(ctx.attr._apt_sources).dirname), ctx.attr.distribution_package, ctx.attr.distribution_file],
        timeout = 300,
    )
    path = result.stdout.strip()
    archive = _from_distribution(ctx, "file://" + path) if path else None
    ctx.delete("apt")
    return archive, result.stderr.strip()

def _fetch(ctx):
    archive = _from_upstream(ctx) if _can_reach(ctx, ctx.attr.urls[0]) else None
    if archive:
        return archive
    archive, apt_message = _from_apt(ctx)

    # Nothing can be reached. An address that leads nowhere asks the cache and --distdir alone.
    archive = archive or _from_upstream(ctx)
    archive = archive or _from_distribution(ctx, "file:///nonexistent/" + ctx.attr.distribution_file)
    if not archive:
        fail("\n".join([
            "@{}: its source archive could not be fetched.".format(ctx.name),
            "  tried: " + ", ".join(ctx.attr.urls),
            "  tried: apt-get source {}: {}".format(ctx.attr.distribution_package, apt_message),
            "  to fix it: connect this machine once, or put {} (sha256 {}) in a folder named by --distdir=FOLDER.".format(
                ctx.attr.urls[0].split("/")[-1],
                ctx.attr.sha256,
            ),
        ]))
    return archive

def _write_distfile_build(ctx, file_name):
    ctx.file("distfile/BUILD", """filegroup(
    name = "distfile",
    srcs = ["{}"],
    visibility = ["//visibility:public"],
)
""".format(file_name))

def _pinned_source_impl(ctx):
    archive = _fetch(ctx)
    ctx.extract(_archive(archive.file_name), stripPrefix = archive.strip_prefix)
    _write_distfile_build(ctx, archive.file_name)
    if ctx.attr.build_file:
        ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    for command in ctx.attr.patch_cmds:
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
        "_apt_sources": attr.label(default = "@tessera_apt_sources//:BUILD"),
    },
)

def _download_wheel(ctx, url):
    return ctx.download([url], _archive(ctx.attr.file_name), ctx.attr.sha256, allow_fail = True).success

def _pinned_wheel_impl(ctx):
    python = ctx.os.environ.get("TESSERA_PYTHON", "python3")
    pip_message = ""

    # An address that leads nowhere asks the cache and --distdir.
    if not _download_wheel(ctx, "file:///nonexistent/" + ctx.attr.file_name):
        pip = ctx.execute([python, "-m", "pip", "-q", "download", "--no-deps", "--only-binary=:all:", "--dest=pip", ctx.attr.package])
        pip_message = pip.stderr.strip()
        if not _download_wheel(ctx, "file://%s/%s" % (ctx.path("pip"), ctx.attr.file_name)):
            fail("\n".join([
                "@{}: its wheel could not be fetched.".format(ctx.name),
                "  tried: {} -m pip download {}: {}".format(python, ctx.attr.package, pip_message),
                "  to fix it: connect this machine once, or put {} (sha256 {}) in a folder named by --distdir=FOLDER.".format(
                    ctx.attr.file_name,
                    ctx.attr.sha256,
                ),
            ]))
        ctx.delete("pip")

    # Bazel knows archives by the ends of their names.
    ctx.symlink(_archive(ctx.attr.file_name), "wheel.zip")
    ctx.extract("wheel.zip")
    ctx.delete("wheel.zip")
    _write_distfile_build(ctx, ctx.attr.file_name)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "")

pinned_wheel = repository_rule(
    doc = "A wheel of Python's package index, pinned by sha256.",
    implementation = _pinned_wheel_impl,
    environ = ["TESSERA_PYTHON"],
    attrs = {
        "package": attr.string(mandatory = True, doc = "NAME==VERSION."),
        "file_name": attr.string(mandatory = True),
        "sha256": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
)
