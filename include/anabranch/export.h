// SPDX-License-Identifier: Apache-2.0
// What a shared build of the library exports. Everything else is hidden.
#pragma once

#define ANABRANCH_API __attribute__((visibility("default")))
