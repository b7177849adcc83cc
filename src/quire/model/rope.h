// Rotary frequencies from what a model file says, for every scaling whose frequencies do not change
// with the length of the sequence. Oracle: transformers 5.23, modeling_rope_utils.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/kernels/rotary.h"
#include "quire/result.h"

namespace quire::model {

// The rotary fields of config.json or of GGUF metadata. Fields that a type does not use are
// ignored.
struct RopeSpec {
  std::string type = "default";  // "default", "linear", "llama3", "yarn", "longrope",
                                 // "proportional"
  double theta = 10000.0;
  std::string theta_name = "the rope theta";  // name of theta in the file, for messages
  std::int32_t rotary_dim = 0;                // even; at most the head size
  std::int32_t context_length = 0;            // the model's context length
  std::optional<double> factor;
  std::optional<double>
      original_context_length;             // context length of the model before it was stretched
  std::optional<double> attention_factor;  // factor on cos and sin; else computed from factor
  std::optional<double> low_freq_factor, high_freq_factor;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                 // yarn
  double mscale = 0.0, mscale_all_dim = 0.0;                // yarn; 0 = not given
  bool truncate = true;                                     // yarn
  double turned = 1.0;                                      // proportional: share that is turned
  std::vector<double> short_factor, long_factor;            // longrope, [rotary_dim / 2]
  std::vector<double> divisors;  // [rotary_dim / 2] or empty: each frequency is divided by its own
                                 // (the rope_freqs tensor of GGUF files)
};

struct Rope {
  kernels::RotaryConfig rotary;
  // Is above the spec's where linear, yarn or llama3 stretch the original length further than a
  // file with an unedited length says. Is below it where longrope would change its frequencies.
  std::int32_t context_length = 0;
};

// Returns the frequencies and how many positions they are for. kUnsupported for types whose
// frequencies change with the length (dynamic NTK) and unknown ones, kInvalidArgument for missing
// or senseless numbers; each named. Longrope has two sets of factors. It switches all positions to
// the long ones once a sequence exceeds the original length, which no stored key could follow. So
// unless both sets are the same it is served up to that length only.
[[nodiscard]] Result<Rope> make_rope(const RopeSpec& spec);

}  // namespace quire::model
