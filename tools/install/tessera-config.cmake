# find_package(tessera REQUIRED COMPONENTS topology collectives)
# target_link_libraries(program PRIVATE tessera::topology tessera::collectives)
#
# The components are the modules; without COMPONENTS all that are installed are defined.
get_filename_component(_tessera_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

# _tessera_library(NAME [WHOLE] [ARCHIVE file] [DEFINES ...] [DEPENDS ...] [LINK ...]): one library of the build. All objects
# of a WHOLE one are linked: they register themselves.
function(_tessera_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "WHOLE" "ARCHIVE" "DEFINES;DEPENDS;LINK")
  list(TRANSFORM arg_DEPENDS PREPEND "tessera::lib::")
  if(arg_ARCHIVE AND NOT arg_WHOLE)
    add_library(tessera::lib::${name} STATIC IMPORTED)
    set_target_properties(tessera::lib::${name} PROPERTIES IMPORTED_LOCATION "${_tessera_prefix}/lib/${arg_ARCHIVE}")
  else()
    add_library(tessera::lib::${name} INTERFACE IMPORTED)
  endif()
  if(arg_WHOLE)
    set_property(TARGET tessera::lib::${name} PROPERTY INTERFACE_LINK_OPTIONS
      "-Wl,--whole-archive,${_tessera_prefix}/lib/${arg_ARCHIVE},--no-whole-archive")
  endif()
  set_target_properties(tessera::lib::${name} PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_tessera_prefix}/include/tessera"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_COMPILE_DEFINITIONS "${arg_DEFINES}"
    INTERFACE_LINK_LIBRARIES "${arg_DEPENDS};${arg_LINK}")
endfunction()

function(_tessera_module name)
  list(APPEND _tessera_modules ${name})
  set(_tessera_modules "${_tessera_modules}" PARENT_SCOPE)
  if(NOT TARGET tessera::${name})
    list(TRANSFORM ARGN PREPEND "tessera::lib::")
    add_library(tessera::${name} INTERFACE IMPORTED)
    set_property(TARGET tessera::${name} PROPERTY INTERFACE_LINK_LIBRARIES "${ARGN}")
  endif()
endfunction()

if(NOT TARGET tessera::base)
  include("${CMAKE_CURRENT_LIST_DIR}/tessera-libraries.cmake")
endif()
set(_tessera_modules)
include("${CMAKE_CURRENT_LIST_DIR}/tessera-modules.cmake")

set(tessera_FOUND TRUE)
foreach(_tessera_component IN LISTS tessera_FIND_COMPONENTS)
  if(_tessera_component IN_LIST _tessera_modules)
    set(tessera_${_tessera_component}_FOUND TRUE)
  else()
    set(tessera_${_tessera_component}_FOUND FALSE)
    if(tessera_FIND_REQUIRED_${_tessera_component})
      list(JOIN _tessera_modules ", " _tessera_list)
      set(tessera_FOUND FALSE)
      set(tessera_NOT_FOUND_MESSAGE
        "tessera has no component \"${_tessera_component}\" here; there are: ${_tessera_list}")
    endif()
  endif()
endforeach()
unset(_tessera_component)
unset(_tessera_list)
