"""readme_example_test: compares a README with an example program and its output."""

def readme_example_test(name, readme, source, binary, **kwargs):
    """Fails unless `readme` has the whole of `source` as a code block and the output of `binary` as another.

    Args:
      name: the test's name.
      readme: label of the README.
      source: label of the example's source; leading comment lines may be missing in the README.
      binary: label of the program.
      **kwargs: passed on to sh_test.
    """
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["//tools/docs:check_example.py"],
        args = ["$(rootpath %s)" % label for label in [readme, source, binary]],
        data = [readme, source, binary],
        **kwargs
    )
