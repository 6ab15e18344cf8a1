// SPDX-License-Identifier: Apache-2.0
// The page of a plan: page.html of the Python package, which the build puts into this program, with
// the plan written into it as JSON. It fetches nothing.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
#pragma once

#include <string>
#include <string_view>

#include "anabranch/anabranch.h"

namespace anabranch::tool {

// The bytes of page.html.
std::string_view page_template();

std::string plan_page(const std::string& title, const Plan& plan);

}  // namespace anabranch::tool
