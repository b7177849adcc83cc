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
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

// A request of a batch: the prompt that it answers, and its own parameters.
struct Choice {
  std::size_t prompt = 0;
  SamplingParams params;
  // Index among the choices of the prompt.
  std::int32_t index = 0;
  // Others that wait for its first token. With some it must stream.
  std::int32_t followers = 0;
};
using SubmitChoices = std::function<Result<std::vector<std::shared_ptr<engine::Channel>>>(
    std::span<const Choice> choices)>;

// Runs `count` prompts and returns their outputs in order. `params` holds one element, or one for
// each prompt. `submit` starts all requests that it is given, or none.
// Errors: those of the requests; then all that still run are aborted.
[[nodiscard]] Result<std::vector<GenerationOutput>> run_choices(
    engine::Engine& engine, std::size_t count, std::span<const SamplingParams> params,
    const SubmitChoices& submit, const Interrupt& interrupted);

// Returns true when some request wants several outputs.
[[nodiscard]] bool asks_for_choices(std::span<const SamplingParams> params);

// Runs prompts of ids as run_choices() does, and tells `progress`, if there is one, how many tokens
// of them are computed. `options` holds none, one, or one for each prompt.
[[nodiscard]] Result<std::vector<GenerationOutput>> generate_choices(
    engine::Engine& engine, std::span<const std::vector<TokenId>> prompts,
    std::span<const SamplingParams> params, std::span<const RequestOptions> options,
    const Interrupt& interrupted, const PromptProgress& progress);

}  // namespace quire
