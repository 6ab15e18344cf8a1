# SPDX-License-Identifier: Apache-2.0
# The library that users link: all rooms in one, shared or static by BUILD_SHARED_LIBS; and what of
# it is installed: library, public headers, package files. Every path in them is relative to the
# package itself, so that an installation may be moved.
include(CMakePackageConfigHelpers)

file(GLOB_RECURSE ANABRANCH_PUBLIC_HEADERS CONFIGURE_DEPENDS
     "${PROJECT_SOURCE_DIR}/include/anabranch/*.h")
# The fragments are installed too, but they are lists for macros and no headers of their own.
target_sources(
  anabranch
  PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
         FILES ${ANABRANCH_PUBLIC_HEADERS}
  PUBLIC FILE_SET fragments TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
         FILES "${PROJECT_SOURCE_DIR}/include/anabranch/codes.inc")
set_target_properties(
  anabranch
  PROPERTIES VERSION ${PROJECT_VERSION}
             SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
             VERIFY_INTERFACE_HEADER_SETS ON
             INTERFACE_HEADER_SETS_TO_VERIFY HEADERS
             CXX_VISIBILITY_PRESET hidden
             VISIBILITY_INLINES_HIDDEN ON
             LINKER_LANGUAGE CXX)
target_compile_features(anabranch PUBLIC cxx_std_20)
target_link_libraries(anabranch PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_libraries(anabranch PRIVATE $<BUILD_INTERFACE:anabranch_fmt>)

if(ANABRANCH_INSTALL)
  set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/anabranch")
  install(TARGETS anabranch EXPORT anabranch_targets COMPONENT library
          FILE_SET HEADERS COMPONENT library
          FILE_SET fragments COMPONENT library)
  install(EXPORT anabranch_targets NAMESPACE anabranch:: FILE anabranchTargets.cmake
          DESTINATION "${config_dir}" COMPONENT library)
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/anabranchConfig.cmake.in"
                                "${PROJECT_BINARY_DIR}/package/anabranchConfig.cmake"
                                INSTALL_DESTINATION "${config_dir}")
  # Before 1.0 a minor version may break its users.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/package/anabranchConfigVersion.cmake"
                                   COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/package/anabranchConfig.cmake"
                "${PROJECT_BINARY_DIR}/package/anabranchConfigVersion.cmake"
          DESTINATION "${config_dir}" COMPONENT library)
endif()
