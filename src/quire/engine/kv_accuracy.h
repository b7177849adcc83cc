// Measures how far KV in a format is from KV in the compute type: LLM::kv_accuracy.
#pragma once

#include <span>
#include <string>

#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

class Engine;

// Computes `ids` twice, with KV in pools of its own, and compares. The engine's own requests run in
// between. Errors: those of Engine::check_prompt; kInvalidArgument for fewer than two tokens or an
// unknown format; kOutOfBlocks; kCancelled. kUnsupported for a format that is not there, on an
// accelerator, and for KV that the format cannot hold.
[[nodiscard]] Result<KVAccuracy> kv_accuracy(Engine& engine, std::span<const TokenId> ids,
                                             const std::string& kv_dtype,
                                             const Interrupt& interrupted);

}  // namespace quire::engine
