// StepPoints: where the states of a step's runs are, and which states the step keeps.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/states.h"
#include "quire/model/forward_batch.h"

namespace quire::engine {

// Arrays that stay from step to step. Empty for a model without layers that carry a state.
struct StepPoints {
  struct Kept {
    SeqId sequence;
    std::int32_t tokens = 0;  // the point is behind so many
    kv::HeldState state;
    bool stays = false;  // several histories may go on from it
  };
  std::vector<model::StateRun> runs;
  std::vector<model::StateBranch> branches;  // [branches of the step]
  std::vector<model::StateCapture> captures;
  std::vector<Kept> kept;
  std::vector<model::RightRows> right;  // assumed rows by which states are to advance
};

}  // namespace quire::engine
