// StateWeights: what a layer needs that carries a state.
#pragma once

#include <vector>

#include "quire/kernels/packed_weights.h"

namespace quire::model {

struct LinearWeights {
  kernels::PackedWeights weights;  // [outputs, inputs]
  std::vector<float> bias;         // [outputs] or empty
};

struct StateWeights {
  LinearWeights in;     // rows: [B, C, x] of a short convolution; [q, k, v, z] of a delta
                        // rule; [z, x, B, C, steps] of a state space
  LinearWeights gates;  // rows: beta, decay of each value head
  LinearWeights out;
  std::vector<float> conv;         // [taps, channels], the newest input last
  std::vector<float> conv_bias;    // [channels] or empty
  std::vector<float> decay;        // [value heads], below 0
  std::vector<float> decay_shift;  // [value heads]
  std::vector<float> skip;  // [value heads] of a state space: what a value adds to its output
  std::vector<float> norm;  // [value size], [all value heads] of a state space
};

}  // namespace quire::model
