// SPDX-License-Identifier: Apache-2.0
#include "record/transfer_loops.h"

#include <gmock/gmock.h>

namespace anabranch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr BufferId kTo{0}, kFrom{1};

TEST(TransferLoops, OfContiguousViewsIsOneItem) {
  const View view{kTo, 8, 4, {{3, 40}, {5, 8}, {2, 4}}};
  const TransferLoops transfer = make_transfer_loops(view, view);
  EXPECT_EQ(transfer.item_bytes, 3 * 5 * 2 * 4u);
  EXPECT_THAT(transfer.loops, IsEmpty());
}

TEST(TransferLoops, MergesLoopsThatStepEvenlyInBothViews) {
  const View to{kTo, 0, 4, {{3, 80}, {5, 16}}}, from{kFrom, 0, 4, {{3, 40}, {5, 8}}};
  const TransferLoops transfer = make_transfer_loops(to, from);
  ASSERT_THAT(transfer.loops, SizeIs(1));
  EXPECT_EQ(transfer.loops[0].count, 15u);
}

TEST(TransferLoops, OfViewsWithoutBytesHasNoItem) {
  const View view{kTo, 0, 4, {{3, 4}, {0, 4}}};
  EXPECT_EQ(make_transfer_loops(view, view).item_bytes, 0u);
}

}  // namespace
}  // namespace anabranch
