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
#include "quire/api/llm_impl.h"
#include "quire/engine/active_request.h"
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

// Says how far the requests of the channels are, whose prompts have so many tokens.
void report(std::span<const std::shared_ptr<engine::Channel>> channels,
            std::span<const std::int64_t> tokens, const PromptProgress& progress) {
  std::int64_t done = 0;
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    done += std::min(channels[i]->computed_tokens(), tokens[i]);
    wanted += tokens[i];
  }
  progress(done, wanted);
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

bool asks_for_choices(std::span<const SamplingParams> params) {
  return std::ranges::any_of(params, [](const SamplingParams& each) { return each.n != 1; });
}

Result<std::vector<GenerationOutput>> generate_choices(
    engine::Engine& engine, std::span<const std::vector<TokenId>> prompts,
    std::span<const SamplingParams> params, std::span<const RequestOptions> options,
    const Interrupt& interrupted, const PromptProgress& progress) {
  std::vector<std::int64_t> tokens;
  std::ranges::transform(prompts, std::back_inserter(tokens),
                         [](const auto& ids) { return std::ssize(ids); });
  std::vector<std::shared_ptr<engine::Channel>> first;  // of each prompt, once all are submitted
  const auto submit = [&](std::span<const Choice> choices) {
    std::vector<engine::NewRequest> requests;
    for (const Choice& choice : choices) {
      RequestOptions whose = options_of(options, choice.prompt);
      requests.push_back({.prompt = prompts[choice.prompt],
                          .params = choice.params,
                          .session = std::move(whose.session),
                          .salt = std::move(whose.salt),
                          .streaming = choice.leads,
                          .explain = whose.explain && choice.index == 0});
    }
    auto channels = engine.submit(std::move(requests));
    if (channels.ok() && first.empty()) {
      first = *channels;
    }
    return channels;
  };
  if (!progress) {
    return run_choices(engine, prompts.size(), params, submit, interrupted);
  }
  auto outputs = run_choices(engine, prompts.size(), params, submit, [&] {
    report(first, tokens, progress);
    return interrupted && interrupted();
  });
  if (outputs.ok()) {
    report(first, tokens, progress);
  }
  return outputs;
}

}  // namespace quire
