#include "worker/model/init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace strata {
namespace {

TensorInfo Tensor(const char* name, InitKind init) {
  TensorInfo tensor;
  tensor.name = name;
  tensor.elements = 20000;
  tensor.init = init;
  tensor.init_std = 0.02;
  return tensor;
}

std::vector<float> Whole(const TensorInfo& tensor, uint64_t seed) {
  std::vector<float> values(tensor.elements);
  InitializeTensor(tensor, seed, 0, values);
  return values;
}

TEST(Init, PiecesGiveTheSameBitsAsTheWhole) {
  const TensorInfo tensor = Tensor("a", InitKind::kNormal);
  const std::vector<float> whole = Whole(tensor, 42);
  std::vector<float> pieces(whole.size());
  for (int64_t begin = tensor.elements, piece = 1; begin > 0; piece = piece * 3 % 4001) {
    const int64_t n = std::min(piece, begin);
    begin -= n;
    InitializeTensor(tensor, 42, begin, std::span(pieces).subspan(begin, n));
  }
  EXPECT_EQ(pieces, whole);
}

TEST(Init, ValuesAreNormalWithTheGivenDeviation) {
  double sum = 0, squares = 0;
  const std::vector<float> values = Whole(Tensor("a", InitKind::kNormal), 1);
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 0.03);
}

TEST(Init, DependsOnSeedAndName) {
  const std::vector<float> base = Whole(Tensor("a", InitKind::kNormal), 1);
  EXPECT_NE(base, Whole(Tensor("a", InitKind::kNormal), 2));
  EXPECT_NE(base, Whole(Tensor("b", InitKind::kNormal), 1));
  EXPECT_EQ(base, Whole(Tensor("a", InitKind::kNormal), 1));
}

TEST(Init, NormsAreOnesAndBiasesZeros) {
  EXPECT_EQ(Whole(Tensor("a", InitKind::kOne), 1), std::vector<float>(20000, 1.0f));
  EXPECT_EQ(Whole(Tensor("a", InitKind::kZero), 1), std::vector<float>(20000, 0.0f));
}

}  // namespace
}  // namespace strata
