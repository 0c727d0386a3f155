// What the engine knows of a model's architecture: a plain struct, filled from a job spec or from a
// Hugging Face config.json, complete (no zero means "default" here).
#ifndef OFFLOAD_MODEL_MODEL_CONFIG_H_
#define OFFLOAD_MODEL_MODEL_CONFIG_H_

#include <cstdint>

namespace strata {

enum class Architecture : uint8_t { kGpt2, kLlama };
enum class Activation : uint8_t { kGeluTanh, kGeluErf, kSwiglu };

// Probabilities with which training makes elements zero, 0 <= p < 1 (Srivastava et al. 2014; "inverted": what
// is kept is divided by 1 - p). Of GPT-2 only, in the places of Hugging Face's embd_pdrop, resid_pdrop,
// attn_pdrop.
struct DropoutConfig {
  double embedding = 0;
  double residual = 0;
  double attention = 0;  // no layout exists for any but 0

  bool operator==(const DropoutConfig&) const = default;
};

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
  DropoutConfig dropout;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace strata

#endif  // OFFLOAD_MODEL_MODEL_CONFIG_H_
