#include "offload/bench/synthetic_compute.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/bench/pseudo_values.h"

namespace strata {
namespace {

constexpr int64_t kStampStride = 4096;

// At the start of every buffer that blocks hand on.
struct Header {
  uint64_t batch = 0;   // step << 32 | micro-batch
  uint64_t digest = 0;  // of all parameters so far (activations), of the block's (saved)
  double scale = 0;     // gradient of activations: the loss's gradient scale
};

// What a buffer is: stamps of one kind and block never pass for another's.
enum class Kind : uint64_t { kActivation = 1, kSaved = 2, kGradient = 3, kSavedRest = 4 };

uint64_t StampKey(Kind kind, int block, const Header& header) {
  return MixKeys(MixKeys(static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(block), header.batch),
                 header.digest);
}

// Stamps stand behind the header of each page, and in the last word: a transfer that is short, stale or
// misplaced leaves a wrong one.
template <typename Visit>
void ForEachStamp(int64_t bytes, Visit visit) {
  constexpr int64_t kWord = sizeof(uint64_t);
  for (int64_t at = sizeof(Header); at + kWord <= bytes; at += kStampStride) visit(at);
  if (bytes % kWord == 0) visit(bytes - kWord);
}

void Seal(Kind kind, int block, const Header& header, void* to, int64_t bytes) {
  auto* base = static_cast<std::byte*>(to);
  const uint64_t key = StampKey(kind, block, header);
  ForEachStamp(bytes, [&](int64_t at) {
    const uint64_t stamp = key + static_cast<uint64_t>(at);
    memcpy(base + at, &stamp, sizeof(stamp));
  });
  memcpy(base, &header, sizeof(header));
}

absl::StatusOr<Header> Unseal(Kind kind, int block, const void* from, int64_t bytes, const char* what) {
  const auto* base = static_cast<const std::byte*>(from);
  Header header;
  memcpy(&header, base, sizeof(header));
  const uint64_t key = StampKey(kind, block, header);
  int64_t wrong = -1;
  ForEachStamp(bytes, [&](int64_t at) {
    uint64_t stamp;
    memcpy(&stamp, base + at, sizeof(stamp));
    if (stamp != key + static_cast<uint64_t>(at) && wrong < 0) wrong = at;
  });
  if (wrong >= 0) {
    return absl::DataLossError(absl::StrCat("synthetic model: the ", what, " of block ", block,
                                            " is not what was written there, at byte ", wrong, " of ",
                                            bytes));
  }
  return header;
}

uint64_t BatchOf(const int32_t* tokens) {
  return static_cast<uint64_t>(static_cast<uint32_t>(tokens[0])) << 32 | static_cast<uint32_t>(tokens[1]);
}

// Lets a call take at least `delay`, from its construction to its end, unless a stop is requested.
class Delay {
 public:
  explicit Delay(const SyntheticComputeOptions& options)
      : options_(options),
        until_(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(options.delay)) {}
  ~Delay() {
    if (!options_.busy) Sleep();
    while (std::chrono::steady_clock::now() < until_ && !options_.stop.stop_requested()) {
    }
  }
  Delay(const Delay&) = delete;
  Delay& operator=(const Delay&) = delete;

 private:
  void Sleep() const {
    std::mutex mu;
    std::condition_variable_any never;
    std::unique_lock<std::mutex> lock(mu);
    never.wait_until(lock, options_.stop, until_, [] { return false; });
  }

  const SyntheticComputeOptions& options_;
  const std::chrono::steady_clock::time_point until_;
};

}  // namespace

void SyntheticCompute::MarkBatch(int64_t step, int64_t micro_batch, int32_t* tokens) {
  tokens[0] = static_cast<int32_t>(step);
  tokens[1] = static_cast<int32_t>(micro_batch);
}

// One word of each page: enough to tell one version of a chunk from another.
uint64_t SyntheticCompute::ParamsDigest(const BlockArgs& args) const {
  uint64_t digest = args.block;
  const std::vector<int>& units = layout_.blocks[args.block].units;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(args.params[i]);
    const int64_t size = layout_.units[units[i]].elements * SizeOf(layout_.compute_dtype);
    for (int64_t at = 0; at < size; at += kStampStride) {
      uint64_t word;
      memcpy(&word, bytes + at, sizeof(word));
      digest = MixKeys(digest, word);
    }
  }
  return digest;
}

void SyntheticCompute::WriteGradients(const BlockArgs& args, uint64_t batch, double scale) const {
  // About 0.01 with one micro-batch, and their mean with more.
  const float amplitude = static_cast<float>(0.01 * scale * static_cast<double>(layout_.seq));
  const std::vector<int>& units = layout_.blocks[args.block].units;
  for (size_t i = 0; i < units.size(); ++i) {
    const ParamUnit& unit = layout_.units[units[i]];
    auto* gradient = static_cast<float*>(args.grads[i]);
    const uint64_t key = MixKeys(MixKeys(options_.seed, batch),
                                 static_cast<uint64_t>(args.block) << 32 | static_cast<uint32_t>(units[i]));
    for (size_t t = 0; t < unit.tensors.size(); ++t) {
      const TensorInfo& tensor = unit.tensors[t];
      PseudoValues(key, tensor.offset, amplitude,
                   {gradient + tensor.offset, static_cast<size_t>(tensor.elements)});
      const int64_t end = t + 1 < unit.tensors.size() ? unit.tensors[t + 1].offset : unit.elements;
      std::fill(gradient + tensor.offset + tensor.elements, gradient + end, 0.0f);
    }
    const auto& injection = options_.injection;
    if (injection.has_value() && injection->unit == units[i] &&
        batch == static_cast<uint64_t>(injection->step) << 32) {
      const TensorInfo& tensor = unit.tensors[injection->tensor];
      gradient[tensor.offset + tensor.elements / 2] = injection->value;
    }
  }
}

absl::Status SyntheticCompute::Forward(Stream*, const BlockArgs& args) {
  const Delay delay(options_);
  const Block& block = layout_.blocks[args.block];
  Header in;
  if (block.kind == BlockKind::kEmbedding) {
    in.batch = BatchOf(args.tokens);
  } else {
    STRATA_ASSIGN_OR_RETURN(
        in, Unseal(Kind::kActivation, args.block, args.input, layout_.activation_bytes, "input"));
  }
  const uint64_t params = ParamsDigest(args);
  Seal(Kind::kActivation, args.block + 1, {.batch = in.batch, .digest = MixKeys(in.digest, params)},
       args.output, layout_.activation_bytes);
  if (block.saved_bytes > 0)
    Seal(Kind::kSaved, args.block, {.batch = in.batch, .digest = params}, args.saved, block.saved_bytes);
  if (block.saved_rest_bytes > 0)
    Seal(Kind::kSavedRest, args.block, {.batch = in.batch, .digest = params}, args.saved_rest,
         block.saved_rest_bytes);
  return absl::OkStatus();
}

absl::Status SyntheticCompute::RecomputeRest(Stream*, const BlockArgs& args) {
  const Delay delay(options_);
  const Block& block = layout_.blocks[args.block];
  STRATA_ASSIGN_OR_RETURN(const Header saved,
                          Unseal(Kind::kSaved, args.block, args.saved, block.saved_bytes, "saved state"));
  if (saved.digest != ParamsDigest(args)) {
    return absl::DataLossError(absl::StrCat("synthetic model: RECOMPUTE of block ", args.block,
                                            " has other parameters than its FORWARD had"));
  }
  Seal(Kind::kSavedRest, args.block, saved, args.saved_rest, block.saved_rest_bytes);
  return absl::OkStatus();
}

absl::Status SyntheticCompute::Loss(Stream*, const BlockArgs& args) {
  const Delay delay(options_);
  STRATA_ASSIGN_OR_RETURN(
      const Header in, Unseal(Kind::kActivation, args.block, args.input, layout_.activation_bytes, "input"));
  if (BatchOf(args.tokens) != in.batch) {
    return absl::DataLossError("synthetic model: the head has the tokens of another micro-batch");
  }
  const uint64_t digest = MixKeys(in.digest, ParamsDigest(args));
  const double rows = static_cast<double>(layout_.seq);
  args.loss[0] += rows * (10 + static_cast<double>(digest >> 11) * 0x1p-53);
  args.loss[1] += rows;
  if (args.grads.empty()) return absl::OkStatus();
  WriteGradients(args, in.batch, args.gradient_scale);
  Seal(Kind::kGradient, args.block, {.batch = in.batch, .scale = args.gradient_scale}, args.grad,
       layout_.activation_bytes);
  return absl::OkStatus();
}

absl::Status SyntheticCompute::Backward(Stream*, const BlockArgs& args) {
  const Delay delay(options_);
  const Block& block = layout_.blocks[args.block];
  STRATA_ASSIGN_OR_RETURN(const Header above, Unseal(Kind::kGradient, args.block + 1, args.grad,
                                                     layout_.activation_bytes, "output's gradient"));
  uint64_t batch;
  if (block.kind == BlockKind::kEmbedding) {
    batch = BatchOf(args.tokens);
  } else {
    STRATA_ASSIGN_OR_RETURN(const Header in, Unseal(Kind::kActivation, args.block, args.input,
                                                    layout_.activation_bytes, "input"));
    batch = in.batch;
  }
  bool same = batch == above.batch;
  if (block.saved_bytes > 0) {
    STRATA_ASSIGN_OR_RETURN(const Header saved,
                            Unseal(Kind::kSaved, args.block, args.saved, block.saved_bytes, "saved state"));
    same = same && saved.batch == batch;
    if (block.saved_rest_bytes > 0) {
      STRATA_ASSIGN_OR_RETURN(const Header rest, Unseal(Kind::kSavedRest, args.block, args.saved_rest,
                                                        block.saved_rest_bytes, "second saved state"));
      same = same && rest.batch == batch && rest.digest == saved.digest;
    }
    if (saved.digest != ParamsDigest(args)) {
      return absl::DataLossError(absl::StrCat("synthetic model: BACKWARD of block ", args.block,
                                              " has other parameters than its FORWARD had"));
    }
  }
  if (!same) {
    return absl::DataLossError(
        absl::StrCat("synthetic model: BACKWARD of block ", args.block, " has buffers of two micro-batches"));
  }
  WriteGradients(args, batch, above.scale);
  if (block.kind != BlockKind::kEmbedding) {
    Seal(Kind::kGradient, args.block, {.batch = batch, .scale = above.scale}, args.grad,
         layout_.activation_bytes);
  }
  return absl::OkStatus();
}

}  // namespace strata
