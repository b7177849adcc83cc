// Choices: several outputs for one prompt (SamplingParams::n). The first choice of every prompt
// starts at once. The others start when it has given a token: they find its prompt's KV cached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire {

// A request of a batch: the prompt that it answers, and its own parameters.
struct Choice {
  std::size_t prompt = 0;
  SamplingParams params;
  // Index among the choices of the prompt.
  std::int32_t index = 0;
  // True: others wait for its first token, so it must stream.
  bool leads = false;
};
using SubmitChoices = std::function<Result<std::vector<std::shared_ptr<engine::Channel>>>(
    std::span<const Choice> choices)>;

// Runs `count` prompts and returns their outputs in order. `params` holds one element, or one for
// each prompt. `submit` starts all requests that it is given, or none.
// Errors: those of the requests; then all that still run are aborted.
[[nodiscard]] Result<std::vector<GenerationOutput>> run_choices(
    engine::Engine& engine, std::size_t count, std::span<const SamplingParams> params,
    const SubmitChoices& submit, const Interrupt& interrupted);

}  // namespace quire
