"""pinned_source: an http_archive with a fallback, the distribution's source package; pinned_wheel: the same for a wheel
of Python's package index, with pip as the fallback.

The bytes are pinned by sha256 for every origin. The order is: Bazel's repository cache, --distdir, upstream's address if
its host resolves. Then `apt-get source` on Debian and Ubuntu (private lists: no root, nothing installed, the
system's apt state untouched). Without a network: only the repository cache and --distdir. The archive stays in the
repository as @NAME//distfile, so that tests can rebuild offline from it.
"""

# Where the wheels are that pip knows.
PYPI = "https://files.pythonhosted.org/packages/"

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

def fetch_source(ctx):
    """Fetches the archive that the attributes of SOURCE_ATTRS describe.

    Args:
      ctx: of a repository rule.

    Returns:
      (archive, None), or (None, why there is none).
    """
    archive = _from_upstream(ctx) if _can_reach(ctx, ctx.attr.urls[0]) else None
    if archive:
        return archive, None
    archive, apt_message = _from_apt(ctx)

    # Nothing can be reached. An address that leads nowhere asks the cache and --distdir alone.
    archive = archive or _from_upstream(ctx)
    archive = archive or _from_distribution(ctx, "file:///nonexistent/" + ctx.attr.distribution_file)
    return archive, None if archive else "\n".join([
        "@{}: its source archive could not be fetched.".format(ctx.name),
        "  tried: " + ", ".join(ctx.attr.urls),
        "  tried: apt-get source {}: {}".format(ctx.attr.distribution_package, apt_message),
        "  to fix it: connect this machine once, or put {} (sha256 {}) in a folder named by --distdir=FOLDER.".format(
            ctx.attr.urls[0].split("/")[-1],
            ctx.attr.sha256,
        ),
    ])

def extract_source(ctx, archive):
    """Extracts what fetch_source() returned.

    Args:
      ctx: of a repository rule.
      archive: of fetch_source().
    """
    ctx.extract(_archive(archive.file_name), stripPrefix = archive.strip_prefix)
    _write_distfile_build(ctx)

def _write_distfile_build(ctx):
    ctx.file("distfile/BUILD", """filegroup(
    name = "distfile",
    srcs = glob(["*"], exclude = ["BUILD"]),
    visibility = ["//visibility:public"],
)
""")

def _pinned_source_impl(ctx):
    archive, failure = fetch_source(ctx)
    if failure:
        fail(failure)
    extract_source(ctx, archive)
    if ctx.attr.build_file:
        ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    for command in ctx.attr.patch_cmds:
        result = ctx.execute(["sh", "-c", command])
        if result.return_code:
            fail("@{}: {}: {}".format(ctx.name, command, result.stderr))

SOURCE_ATTRS = {
    "urls": attr.string_list(),
    "sha256": attr.string(),
    "strip_prefix": attr.string(),
    "distribution_package": attr.string(doc = "The Debian source package of this version."),
    "distribution_file": attr.string(doc = "The name of its upstream archive."),
    "distribution_sha256": attr.string(doc = "Where the distribution repacked the archive."),
    "distribution_strip_prefix": attr.string(doc = "Where the distribution repacked the archive."),
    "_apt_sources": attr.label(default = "@tessera_apt_sources//:BUILD"),
}

pinned_source = repository_rule(
    doc = "An upstream source archive, pinned by sha256.",
    implementation = _pinned_source_impl,
    attrs = dict(
        SOURCE_ATTRS,
        build_file = attr.label(allow_single_file = True),
        patch_cmds = attr.string_list(),
    ),
)

def fetch_wheel(ctx, package, url, sha256):
    """Fetches and extracts a wheel: out of the cache, a --distdir or `url`, or by pip, which may know a mirror.

    Args:
      ctx: of a repository rule.
      package: NAME==VERSION.
      url: of the wheel at the package index.
      sha256: of the wheel.

    Returns:
      None, or why it could not be fetched.
    """
    file_name = url.split("/")[-1]

    # An address that leads nowhere asks the cache and --distdir.
    origin = url if _can_reach(ctx, url) else "file:///nonexistent/" + file_name
    if not ctx.download([origin], _archive(file_name), sha256, allow_fail = True).success:
        python = ctx.os.environ.get("TESSERA_PYTHON", "python3")
        platform = file_name[:-len(".whl")].split("-")[-1].split(".")[-1]
        pip = ctx.execute([python, "-m", "pip", "-q", "download", "--no-deps", "--only-binary=:all:", "--platform=" + platform, "--dest=pip", package])
        if not ctx.download(["file://%s/%s" % (ctx.path("pip"), file_name)], _archive(file_name), sha256, allow_fail = True).success:
            return "\n".join([
                "@{}: its wheel could not be fetched.".format(ctx.name),
                "  tried: " + url,
                "  tried: {} -m pip download {}: {}".format(python, package, pip.stderr.strip()),
                "  to fix it: connect this machine once, or put {} (sha256 {}) in a folder named by --distdir=FOLDER.".format(
                    file_name,
                    sha256,
                ),
            ])
        ctx.delete("pip")

    # Bazel knows archives by the ends of their names.
    ctx.symlink(_archive(file_name), "wheel.zip")
    ctx.extract("wheel.zip")
    ctx.delete("wheel.zip")
    _write_distfile_build(ctx)
    return None

def _pinned_wheel_impl(ctx):
    failure = fetch_wheel(ctx, ctx.attr.package, ctx.attr.url, ctx.attr.sha256)
    if failure:
        fail(failure)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")
    ctx.file("WORKSPACE", "")

pinned_wheel = repository_rule(
    doc = "A wheel of Python's package index, pinned by sha256.",
    implementation = _pinned_wheel_impl,
    environ = ["TESSERA_PYTHON"],
    attrs = {
        "package": attr.string(mandatory = True, doc = "NAME==VERSION."),
        "url": attr.string(mandatory = True, doc = "At the package index."),
        "sha256": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
    },
)
