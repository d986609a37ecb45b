# find_package(sidecar) gives
#   sidecar::sidecar   the shared library
#   sidecar::static    the static one
#   sidecar::agent     the agent alone, without std and without an allocator
# It is where it was installed: three directories up are include/ and lib/.
get_filename_component(_sidecar_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
find_package(Threads REQUIRED)

if(NOT TARGET sidecar::sidecar)
  add_library(sidecar::sidecar SHARED IMPORTED)
  set_target_properties(sidecar::sidecar PROPERTIES
    IMPORTED_LOCATION "${_sidecar_prefix}/lib/libsidecar.so"
    IMPORTED_SONAME "libsidecar.so.@ABI_MAJOR@"
    INTERFACE_INCLUDE_DIRECTORIES "${_sidecar_prefix}/include")

  add_library(sidecar::static STATIC IMPORTED)
  set_target_properties(sidecar::static PROPERTIES
    IMPORTED_LOCATION "${_sidecar_prefix}/lib/libsidecar.a"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;gcc_s;util;rt;m;dl"
    INTERFACE_INCLUDE_DIRECTORIES "${_sidecar_prefix}/include")

  add_library(sidecar::agent STATIC IMPORTED)
  set_target_properties(sidecar::agent PROPERTIES
    IMPORTED_LOCATION "${_sidecar_prefix}/lib/libsidecar_agent.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_sidecar_prefix}/include")
endif()
unset(_sidecar_prefix)
