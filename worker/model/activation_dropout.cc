#include "worker/model/activation_dropout.h"

#include "common/random.h"

namespace strata {
namespace {

// So that dropout shares no random number with other uses of the job's seed.
constexpr uint64_t kSeedStream = 0x64726F706F757431;  // "dropout1"

}  // namespace

ActivationDropout::ActivationDropout(Ops& ops, uint64_t seed, double drop, int64_t rows, int64_t hidden)
    : ops_(ops), seed_(CounterRandom(seed, kSeedStream).Bits(0)), drop_(drop), rows_(rows), hidden_(hidden) {}

absl::Status ActivationDropout::Run(Stream* stream, const BlockArgs& args, int64_t place, const void* x,
                                    void* out) const {
  DropoutArgs dropout;
  dropout.n = rows_ * hidden_;
  dropout.drop = drop_;
  dropout.seed = seed_;
  dropout.step = static_cast<uint32_t>(args.draw->step);
  dropout.tensor = static_cast<uint32_t>(place);
  dropout.first = args.draw->first_row * hidden_;
  dropout.x = x;
  dropout.out = out;
  return ops_.Dropout(stream, dropout);
}

}  // namespace strata
