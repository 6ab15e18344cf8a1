# SPDX-License-Identifier: Apache-2.0
# anabranch_page_template(<target>): gives the target the function page_template(), which answers the
# bytes of page.html as they are.
function(anabranch_page_template target)
  set(page "${PROJECT_SOURCE_DIR}/python/anabranch/_explain/page.html")
  set(source "${CMAKE_CURRENT_BINARY_DIR}/page_template.cpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${page}")
  file(READ "${page}" bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "((0x..,){20})" "\\1\n    " bytes "${bytes}")
  file(GENERATE OUTPUT "${source}" CONTENT "// Made of ${page}
#include \"${CMAKE_CURRENT_FUNCTION_LIST_DIR}/page.h\"

namespace anabranch::tool {
namespace {
constexpr unsigned char kPage[] = {
    ${bytes}
};
}  // namespace

std::string_view page_template() {
  return {reinterpret_cast<const char*>(kPage), sizeof kPage};
}
}  // namespace anabranch::tool
")
  target_sources(${target} PRIVATE "${source}")
endfunction()
