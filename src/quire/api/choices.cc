#include "quire/api/choices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/api/await.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire {
namespace {

SamplingParams params_of(const SamplingParams& params, std::int32_t index) {
  SamplingParams one = params;
  one.n = 1;
  if (params.seed) {
    one.seed = *params.seed + static_cast<std::uint64_t>(index);
  }
  return one;
}

// Blocks until each has given a token or has ended.
Status await_first(Channels leading, const Interrupt& interrupted) {
  for (const auto& channel : leading) {
    while (!channel->wait(interrupted ? kInterruptPollMs : -1)) {
      if (interrupted()) {
        return {ErrorCode::kCancelled, "the call was interrupted"};
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<GenerationOutput>> run_choices(engine::Engine& engine, std::size_t count,
                                                  std::span<const SamplingParams> params,
                                                  const SubmitChoices& submit,
                                                  const Interrupt& interrupted) {
  std::vector<Choice> first;
  std::vector<Choice> others;
  for (std::size_t i = 0; i < count; ++i) {
    const SamplingParams& asked = params[params.size() == 1 ? 0 : i];
    QUIRE_TRY_STATUS(asked.validate());
    first.push_back({.prompt = i, .params = params_of(asked, 0), .leads = asked.n > 1});
    for (std::int32_t choice = 1; choice < asked.n; ++choice) {
      others.push_back({.prompt = i, .params = params_of(asked, choice), .index = choice});
    }
  }
  QUIRE_TRY(auto channels, submit(first));
  if (!others.empty()) {
    std::vector<std::shared_ptr<engine::Channel>> leading;
    for (std::size_t i = 0; i < count; ++i) {
      if (first[i].leads) {
        leading.push_back(channels[i]);
      }
    }
    Status led = await_first(leading, interrupted);
    if (led.ok()) {
      auto more = submit(others);
      led = more.ok() ? Status() : more.error();
      std::ranges::move(more.ok() ? *more : decltype(channels)(), std::back_inserter(channels));
    }
    if (!led.ok()) {
      std::ranges::for_each(channels, [&](const auto& each) { engine.abandon(each->id()); });
      return led.error();
    }
  }
  QUIRE_TRY(auto outputs, await_outputs(engine, channels, interrupted));
  for (std::size_t i = 0; i < others.size(); ++i) {
    GenerationOutput& of_prompt = outputs[others[i].prompt];
    if (of_prompt.outputs.empty()) {
      of_prompt.outputs.push_back(of_prompt);
    }
    of_prompt.outputs.push_back(std::move(outputs[count + i]));
  }
  outputs.resize(count);
  return outputs;
}

}  // namespace quire
