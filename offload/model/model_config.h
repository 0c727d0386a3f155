// What the engine knows of a model's architecture: a plain struct, filled from a job spec or from a
// Hugging Face config.json, complete (no zero means "default" here).
#ifndef OFFLOAD_MODEL_MODEL_CONFIG_H_
#define OFFLOAD_MODEL_MODEL_CONFIG_H_

#include <cstdint>

namespace strata {

enum class Architecture : uint8_t { kGpt2, kLlama };
enum class Activation : uint8_t { kGeluTanh, kGeluErf, kSwiglu };

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_seq = 0;
  Activation activation = Activation::kSwiglu;  // GPT-2: one of the GELUs; Llama: kSwiglu
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  bool tied_head = false;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace strata

#endif  // OFFLOAD_MODEL_MODEL_CONFIG_H_
