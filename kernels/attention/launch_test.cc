// Which calls are refused, and with which words.
#include "kernels/attention/launch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace strata::attention {
namespace {

alignas(16) unsigned char memory[64];

BackwardCall Good() {
  BackwardCall call;
  ForwardCall& forward = call.forward;
  forward.shape = {2, 4, 2, 64, 3, 5, 6, 10, kUnbounded, 0, 0.125f};
  forward.q = forward.k = forward.v = call.dout = memory;
  forward.out = call.dq = call.dk = call.dv = memory;
  forward.lse = call.delta = reinterpret_cast<float*>(memory);
  forward.ldq = forward.ldo = call.lddo = call.lddq = 256;
  forward.ldk = forward.ldv = call.lddk = call.lddv = 128;
  return call;
}

// What is said after `change` has spoilt a good call.
template <class Change>
std::string Refusal(Change change, DType dtype = DType::kBF16) {
  BackwardCall call = Good();
  change(call);
  const std::string said = CheckBackward(dtype, call);
  // What is refused is not launched: nothing here could run.
  if (!said.empty()) {
    for (const Family family : {Family::kFa2, Family::kFa3}) {
      const kx::LaunchStatus status = Backward(nullptr, family, dtype, call);
      EXPECT_EQ(status.code, kInvalidCall);
      EXPECT_EQ(status.message, said);
    }
  }
  return said;
}

TEST(AttentionLaunch, Fp8WantsAWorkspaceAndHasNoBackward) {
  BackwardCall call = Good();
  const int64_t needed = Fp8WorkspaceBytes(call.forward.shape, false);
  // 4 + 2 * 2 heads of 2 sequences of 128 rows of 64 bytes, and scales in pieces of 128.
  EXPECT_EQ(needed, 8 * 2 * 128 * 64 + 2 * 128);
  const auto expect_refusal = [&](const kx::LaunchStatus& status, const std::string& part) {
    EXPECT_EQ(status.code, kInvalidCall);
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  };
  const auto forward = [&] { return Forward(nullptr, Family::kFa3Fp8, DType::kBF16, call.forward); };
  expect_refusal(forward(), "workspace_bytes = 0 must be at least " + std::to_string(needed));
  call.forward.workspace = memory;
  call.forward.workspace_bytes = needed - 1;
  expect_refusal(forward(), "workspace_bytes = " + std::to_string(needed - 1) + " must be at least");
  call.forward.workspace = memory + 8;
  call.forward.workspace_bytes = needed;
  expect_refusal(forward(), "workspace must be a multiple of 16 bytes");
  call.forward.workspace = memory;
  expect_refusal(Backward(nullptr, Family::kFa3Fp8, DType::kBF16, call), "fp8 has no backward pass");
  call.forward.shape.heads = 3;
  expect_refusal(forward(), "heads = 3 must be a multiple of kv_heads");
}

TEST(AttentionLaunch, AGoodCallIsAccepted) {
  EXPECT_EQ(Refusal([](BackwardCall&) {}), "");
  EXPECT_EQ(CheckForward(DType::kF16, Good().forward), "");
}

TEST(AttentionLaunch, WrongFieldsAreNamedWithTheRule) {
  using C = BackwardCall;
  const auto expect = [](const std::string& said, const char* part) {
    EXPECT_NE(said.find(part), std::string::npos) << "said: " << said;
  };
  expect(Refusal([](C& c) { c.forward.shape.batch = 0; }), "batch = 0 must be in [1, 65535]");
  expect(Refusal([](C& c) { c.forward.shape.heads = 70000; }), "heads = 70000 must be in");
  expect(Refusal([](C& c) { c.forward.shape.heads = 3; }), "heads = 3 must be a multiple of kv_heads");
  expect(Refusal([](C& c) { c.forward.shape.head_dim = 12; }), "head_dim = 12 must be a multiple of 8");
  expect(Refusal([](C& c) { c.forward.shape.head_dim = 264; }), "head_dim = 264 must be in [1, 256]");
  expect(Refusal([](C& c) { c.forward.shape.seq_q = (1 << 27) + 1; }), "seq_q = 134217729 must be in");
  expect(Refusal([](C& c) { c.forward.shape.total_k = 11; }), "total_k batch * seq_k");
  expect(Refusal([](C& c) { c.forward.shape.left = -1; }), "left = -1");
  expect(Refusal([](C& c) { c.forward.shape.right = kUnbounded + 1; }), "right = 536870913");
  expect(Refusal([](C& c) { c.forward.shape.scale = 0; }), "scale = 0.000000 must be positive");
  expect(Refusal([](C& c) { c.forward.shape.scale = NAN; }), "must be positive");
  expect(Refusal([](C& c) { c.forward.cu_q = reinterpret_cast<const int32_t*>(memory); }), "cu_q and cu_k");
  expect(Refusal([](C& c) { c.forward.q = nullptr; }), "q is null");
  expect(Refusal([](C& c) { c.forward.k = memory + 8; }), "k must be a multiple of 16 bytes");
  expect(Refusal([](C& c) { c.forward.ldv = 120; }), "leading dimension of v = 120");
  expect(Refusal([](C& c) { c.lddk = 129; }), "leading dimension of dk = 129");
  expect(Refusal([](C& c) { c.forward.lse = nullptr; }), "lse is null");
  expect(Refusal([](C& c) { c.delta = nullptr; }), "delta is null");
  expect(Refusal([](C& c) {}, DType::kF32), "element type f32 must be bf16 or f16");
  const auto wide = [](C& c) {
    c.forward.shape.head_dim = 136;
    c.forward.ldq = c.forward.ldo = c.lddo = c.lddq = 4 * 136;
    c.forward.ldk = c.forward.ldv = c.lddk = c.lddv = 2 * 136;
  };
  expect(Refusal(wide), "head_dim = 136 must be at most 128 backward");
}

}  // namespace
}  // namespace strata::attention
