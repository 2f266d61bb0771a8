# An overlay port of the tree that it is in: vcpkg install tessera --overlay-ports=tools/packaging/vcpkg
# Bazel builds it, with the machine's libraries (third_party/system_packages.txt).
set(VCPKG_BUILD_TYPE release)
set(VCPKG_POLICY_DLLS_IN_STATIC_LIBRARY enabled)           # The C interface is a shared library.
set(VCPKG_POLICY_SKIP_LIB_CMAKE_MERGE_CHECK enabled)       # CMake finds lib/cmake/tessera, which can be moved as it is.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../../.." REALPATH)

vcpkg_execute_required_process(
  COMMAND ./bazelw "--output_user_root=${CURRENT_BUILDTREES_DIR}/bazel" --max_idle_secs=60 run
          --repo_env=TESSERA_LIBRARIES=system --config=nocuda --color=no --curses=no --noshow_progress
          //tools/install -- --quiet "--prefix=${CURRENT_PACKAGES_DIR}"
  WORKING_DIRECTORY "${SOURCE_PATH}"
  LOGNAME "install-${TARGET_TRIPLET}"
)
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
