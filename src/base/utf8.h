// SPDX-License-Identifier: Apache-2.0
// Well-formed UTF-8.
// Ownership: borrows the text for the call.
// Threads:   pure.
// Failure:   bytes that are no UTF-8 have length 0.
#pragma once

#include <cstddef>
#include <string_view>

namespace anabranch {

// Bytes of the sequence at the start of `text`, which is not empty; 0: there is none.
std::size_t utf8_length(std::string_view text);

}  // namespace anabranch
