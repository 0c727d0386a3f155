#include "offload/exec/stall.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

Operand On(int slot, Access access, ContentKind kind, int64_t offset = 0) {
  return {.slot = slot, .offset = offset, .bytes = 64, .access = access, .content = {.kind = kind}};
}

StallCause Cause(Op producer, Op waiting) {
  StepPlan plan;
  plan.ops.push_back(std::move(producer));
  return StallCauseOf(plan, waiting, {.op = 0});
}

TEST(StallTest, BytesThatAreWaitedForTellTheCause) {
  const Op update = {.kind = OpKind::kUpdate,
                     .operands = {On(1, Access::kReadWrite, ContentKind::kRecord),
                                  On(2, Access::kRead, ContentKind::kAccumulated)}};
  EXPECT_EQ(Cause({.kind = OpKind::kRead,
                   .operands = {On(0, Access::kRead, ContentKind::kRecord),
                                On(1, Access::kWrite, ContentKind::kRecord)}},
                  update),
            StallCause::kRead);
  EXPECT_EQ(Cause({.kind = OpKind::kD2H,
                   .operands = {On(3, Access::kRead, ContentKind::kGradient),
                                On(2, Access::kWrite, ContentKind::kAccumulated)}},
                  update),
            StallCause::kGradient);
  const Op forward = {.kind = OpKind::kForward,
                      .operands = {On(5, Access::kRead, ContentKind::kActivation),
                                   On(6, Access::kRead, ContentKind::kParams)}};
  EXPECT_EQ(Cause({.kind = OpKind::kH2D,
                   .operands = {On(9, Access::kRead, ContentKind::kParams),
                                On(6, Access::kWrite, ContentKind::kParams)}},
                  forward),
            StallCause::kCopy);
  EXPECT_EQ(Cause({.kind = OpKind::kForward, .operands = {On(5, Access::kWrite, ContentKind::kActivation)}},
                  forward),
            StallCause::kCompute);
  EXPECT_EQ(Cause(update, {.kind = OpKind::kWrite, .operands = {On(1, Access::kRead, ContentKind::kRecord)}}),
            StallCause::kUpdate);
}

TEST(StallTest, MemoryInUseIsASlotAndMemoryOnItsWayToNvmeAWrite) {
  const Op read = {
      .kind = OpKind::kRead,
      .operands = {On(0, Access::kRead, ContentKind::kRecord), On(1, Access::kWrite, ContentKind::kRecord)}};
  EXPECT_EQ(
      Cause({.kind = OpKind::kUpdate, .operands = {On(1, Access::kReadWrite, ContentKind::kRecord)}}, read),
      StallCause::kSlot);
  EXPECT_EQ(Cause({.kind = OpKind::kWrite,
                   .operands = {On(1, Access::kRead, ContentKind::kRecord),
                                On(7, Access::kWrite, ContentKind::kRecord)}},
                  read),
            StallCause::kWrite);
}

TEST(StallTest, WithoutSharedBytesTheProducerTells) {
  const Op update = {.kind = OpKind::kUpdate, .operands = {On(1, Access::kReadWrite, ContentKind::kRecord)}};
  EXPECT_EQ(Cause({.kind = OpKind::kClip}, update), StallCause::kNorm);
  EXPECT_EQ(Cause({.kind = OpKind::kCommit}, update), StallCause::kCommit);
  // Other bytes of the same slot.
  EXPECT_EQ(
      Cause({.kind = OpKind::kUpdate, .operands = {On(1, Access::kReadWrite, ContentKind::kRecord, 64)}},
            update),
      StallCause::kUpdate);
}

}  // namespace
}  // namespace strata
