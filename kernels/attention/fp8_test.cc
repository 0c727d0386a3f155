// What is particular to the fp8 forward pass, on the emulator: the bits of the codes, what incoherent
// processing is for, values at the ends of their ranges. Shapes are attention_emu_test.cc's.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/emulated_case.h"
#include "kernels/attention/fp8_decode.h"
#include "kernels/attention/fp8_layout.h"
#include "kernels/kx/kx_hopper.h"
#include "kernels/kx/test_memory.h"

namespace strata::attention {
namespace {

using kx::bf16;
using kx::emu::Buffer;
using kx::emu::RangeKind;

// One sequence of one head, and its matrices to change before it runs.
struct Job {
  Job(int rows_q, int rows_k, int head_dim, uint64_t seed) : rows_q(rows_q), rows_k(rows_k), dim(head_dim) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (auto [m, rows] : {std::pair{&q, rows_q}, std::pair{&k, rows_k}, std::pair{&v, rows_k}}) {
      m->resize(static_cast<size_t>(rows) * head_dim);
      for (bf16& x : *m) x = kx::FromFloat<bf16>(normal(random));
    }
  }
  // Fills out, lse and decoded; "" or what the emulator says.
  std::string Run(bool incoherent) {
    Shape& s = in.shape;
    s = {1, 1, 1, dim, rows_q, rows_k, rows_q, rows_k};
    s.scale = 1 / std::sqrt(static_cast<float>(dim));
    Buffer<bf16> dq("q", q, RangeKind::kInput), dk("k", k, RangeKind::kInput), dv("v", v, RangeKind::kInput);
    Buffer<bf16> dout("out", q, RangeKind::kOutput);
    Buffer<float> dlse("lse", std::vector<float>(rows_q), RangeKind::kOutput);
    Buffer<unsigned char> workspace("workspace", std::vector<unsigned char>(Fp8WorkspaceBytes(s, false)),
                                    RangeKind::kOutput);
    ForwardCall call;
    call.shape = s;
    call.q = dq.data();
    call.k = dk.data();
    call.v = dv.data();
    call.out = dout.data();
    call.lse = dlse.data();
    call.ldq = call.ldk = call.ldv = call.ldo = dim;
    call.workspace = workspace.data();
    call.workspace_bytes = static_cast<int64_t>(workspace.count());
    call.incoherent = incoherent;
    kx::emu::Options options;
    options.only_registered = true;
    options.accumulate = accumulate;
    options.shared_races = options.global_races = races;
    const kx::emu::Session session(options);
    const kx::LaunchStatus status = Forward(nullptr, Family::kFa3Fp8, DType::kBF16, call);
    if (!status.ok()) return status.message;
    in.cu_q = {0, rows_q};
    in.cu_k = {0, rows_k};
    for (auto [to, from] : {std::pair{&in.q, &q}, std::pair{&in.k, &k}, std::pair{&in.v, &v}}) {
      to->clear();
      for (const bf16 x : *from) to->push_back(kx::ToFloat(x));
    }
    decoded = DecodeFp8(in, workspace.data());
    out.clear();
    for (size_t i = 0; i < q.size(); ++i) out.push_back(kx::ToFloat(dout[i]));
    lse.assign(dlse.data(), dlse.data() + rows_q);
    return "";
  }
  double Rms() const {
    const ReferenceResult exact = ReferenceAttention(in, [](double x) { return x; });
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += (out[i] - exact.out[i]) * (out[i] - exact.out[i]);
    return std::sqrt(sum / static_cast<double>(out.size()));
  }

  int rows_q, rows_k, dim;
  kx::emu::Accumulate accumulate = kx::emu::Accumulate::kFloatChain;
  bool races = true;
  std::vector<bf16> q, k, v;
  ReferenceInputs in, decoded;
  std::vector<double> out;
  std::vector<float> lse;
};

// Each element of `got` is the element of `x` as e4m3 of its block of rows, by float arithmetic.
void ExpectCodes(const char* name, const std::vector<double>& x, const std::vector<double>& got, int rows,
                 int dim, int block) {
  for (int first = 0; first < rows; first += block) {
    const int end = std::min(rows, first + block) * dim;
    float top = 0;
    for (int i = first * dim; i < end; ++i) top = std::max(top, std::fabs(static_cast<float>(x[i])));
    const float factor = kx::kE4m3Max / top, scale = top / kx::kE4m3Max;
    for (int i = first * dim; i < end; ++i) {
      const auto code = kx::FromFloat<kx::e4m3>(static_cast<float>(x[i]) * factor);
      ASSERT_EQ(got[i], static_cast<double>(kx::ToFloat(code)) * scale) << name << " element " << i;
    }
  }
}
TEST(Fp8, CodesAreTheElementsByTheLargestOfTheirBlock) {
  Job job(200, 300, 64, 1);
  ASSERT_EQ(job.Run(false), "");
  ExpectCodes("q", job.in.q, job.decoded.q, job.rows_q, job.dim, kFp8QueryBlock);
  ExpectCodes("k", job.in.k, job.decoded.k, job.rows_k, job.dim, kFp8Block);
  ExpectCodes("v", job.in.v, job.decoded.v, job.rows_k, job.dim, kFp8Block);
}

// A row of q or k and its transform: the same length; what was in one column is in the whole group.
TEST(Fp8, TheTransformIsOrthogonalAndSpreadsWhatWasInOneColumn) {
  for (const int dim : {64, 96, 128, 256}) {
    const int group = HadamardGroup(dim);
    Job job(64, 64, dim, 2);
    for (bf16& x : job.k) x = bf16{0};
    for (int row = 0; row < 64; ++row) job.k[row * dim + row % dim] = kx::FromFloat<bf16>(3.f);
    ASSERT_EQ(job.Run(true), "");
    for (int row = 0; row < 64; ++row) {
      double before = 0, after = 0;
      for (int c = 0; c < dim; ++c) {
        before += job.in.q[row * dim + c] * job.in.q[row * dim + c];
        after += job.decoded.q[row * dim + c] * job.decoded.q[row * dim + c];
        const bool in_group = c / group == row % dim / group;
        ASSERT_NEAR(std::fabs(job.decoded.k[row * dim + c]), in_group ? 3 / std::sqrt(group) : 0, 1e-6)
            << dim << " row " << row << " column " << c;
      }
      EXPECT_NEAR(after / before, 1, 0.1) << dim << " row " << row;
    }
  }
}

// The inputs of FlashAttention-3, table 3, N(0, 1) + N(0, 100) Bernoulli(0.001), and ten times as many
// outliers.
TEST(Fp8, IncoherentProcessingLessensTheErrorThatOutliersMake) {
  kx::emu::Options options;
  options.shared_races = options.global_races = false;
  EmulatedCase c{1, 1, 128};
  c.q_lengths = {128};
  c.k_lengths = {640};
  for (const double outliers : {0.001, 0.01}) {
    c.outliers = outliers;
    Errors without, with;
    for (const uint64_t seed : {1, 2}) {
      for (const bool incoherent : {false, true}) {
        c.incoherent = incoherent;
        Errors errors;
        ASSERT_EQ(
            RunEmulated(Family::kFa3Fp8, DType::kF16, c, false, seed, options, nullptr, nullptr, &errors),
            "");
        Errors& sum = incoherent ? with : without;
        sum.out += errors.out / 2;
        sum.lse += errors.lse / 2;
      }
    }
    printf("outliers %g: rms error of out %.3g without, %.3g with incoherent processing, %.2f times less; ",
           outliers, without.out, with.out, without.out / with.out);
    printf("of lse %.3g, %.3g, %.2f times less\n", without.lse, with.lse, without.lse / with.lse);
    EXPECT_GT(without.out / with.out, outliers < 0.005 ? 1.1 : 1.4);
    EXPECT_GT(without.lse / with.lse, 2);
  }
}

// A sum of thousands of keys whose values have a mean would shrink by per cents if it stayed in tensor cores
// that keep 13 bits behind the largest addend.
TEST(Fp8, LongSumsAreNotChoppedAway) {
  for (const auto [dim, keys] : {std::pair{64, 2048}, {256, 1024}}) {
    Job job(64, keys, dim, 9);
    for (bf16& x : job.v) x = kx::FromFloat<bf16>(kx::ToFloat(x) + 1);
    job.accumulate = kx::emu::Accumulate::kTruncate;
    job.races = false;
    ASSERT_EQ(job.Run(true), "");
    const ReferenceResult exact = ReferenceAttention(job.decoded, [](double x) { return x; });
    const auto mean = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.) / static_cast<double>(values.size());
    };
    EXPECT_NEAR(mean(job.out), mean(exact.out), 0.004) << dim;
  }
}

// The unit of the output changes with every tile of V: tiles a million times larger and smaller than others.
TEST(Fp8, TilesOfVMayDifferByOrdersOfMagnitude) {
  Job job(64, 512, 64, 3);
  const float factors[] = {1.f, 1e-6f, 1e6f, 1.f};
  for (size_t i = 0; i < job.v.size(); ++i) {
    job.v[i] = kx::FromFloat<bf16>(kx::ToFloat(job.v[i]) * factors[i / 64 / 128]);
  }
  ASSERT_EQ(job.Run(true), "");
  EXPECT_LT(job.Rms(), 0.01 * 1e6);
  EXPECT_GT(job.Rms(), 0);
}
TEST(Fp8, ZerosAndTinyNumbersHaveScalesThatDivide) {
  Job job(64, 300, 64, 4);
  for (size_t i = 0; i < job.v.size(); ++i) {
    if (i / 64 / 128 != 1) continue;
    job.k[i] = job.v[i] = bf16{0};
  }
  for (bf16& x : job.q) x = kx::FromFloat<bf16>(1e-38f);
  ASSERT_EQ(job.Run(true), "");
  for (const double x : job.out) ASSERT_TRUE(std::isfinite(x));
  // All scores are all but 0: a mean of V.
  for (const float x : job.lse) EXPECT_NEAR(x, std::log(300), 1e-5);
  EXPECT_LT(job.Rms(), 0.01);
}
TEST(Fp8, WhatIsNotFiniteIsNotHidden) {
  for (const uint16_t bits : {0x7fc0, 0x7f80, 0xff80}) {
    Job job(64, 200, 64, 5);
    job.v[10 * 64 + 3] = bf16{bits};
    ASSERT_EQ(job.Run(true), "");
    for (int i = 0; i < 64; ++i) EXPECT_TRUE(std::isnan(job.out[i * 64 + 3])) << i;
    Job other(64, 200, 64, 6);
    other.q[7 * 64] = bf16{bits};
    ASSERT_EQ(other.Run(true), "");
    EXPECT_TRUE(std::isnan(other.lse[7]) && std::isnan(other.out[7 * 64 + 5]));
  }
}

}  // namespace
}  // namespace strata::attention
