#include "quire/api/choices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "quire/api/await.h"
#include "quire/api/llm_impl.h"
#include "quire/base/no_memory.h"
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

// Blocks until each first choice that leads has given a token or has ended. Then starts the others,
// and puts their channels behind those of the first.
Status start_others(std::span<const Choice> first, std::span<const Choice> others,
                    std::vector<std::shared_ptr<engine::Channel>>& channels,
                    const SubmitChoices& submit, const Interrupt& interrupted) try {
  for (std::size_t i = 0; i < first.size(); ++i) {
    while (first[i].followers > 0 && !channels[i]->wait(interrupted ? kInterruptPollMs : -1)) {
      if (interrupted()) {
        return {ErrorCode::kCancelled, "the call was interrupted"};
      }
    }
  }
  QUIRE_TRY(auto more, submit(others));
  std::ranges::move(more, std::back_inserter(channels));
  return {};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
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
    first.push_back({.prompt = i, .params = params_of(asked, 0), .followers = asked.n - 1});
    for (std::int32_t choice = 1; choice < asked.n; ++choice) {
      others.push_back({.prompt = i, .params = params_of(asked, choice), .index = choice});
    }
  }
  std::vector<std::shared_ptr<engine::Channel>> channels;  // memory for all, before any runs
  channels.reserve(count + others.size());
  QUIRE_TRY(auto started, submit(first));
  std::ranges::move(started, std::back_inserter(channels));
  if (!others.empty()) {
    const Status more = start_others(first, others, channels, submit, interrupted);
    if (!more.ok()) {
      std::ranges::for_each(channels, [&](const auto& each) { engine.abandon(each->id()); });
      return more.error();
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
  std::vector<std::shared_ptr<engine::Channel>>
      first;  // first channel of each prompt, once all are submitted
  first.reserve(prompts.size());
  const engine::Clock::time_point submitted = engine::Clock::now();
  const auto submit = [&](std::span<const Choice> choices) {
    std::vector<engine::NewRequest> requests;
    for (const Choice& choice : choices) {
      RequestOptions whose = options_of(options, choice.prompt);
      requests.push_back({.prompt = prompts[choice.prompt],
                          .params = choice.params,
                          .session = std::move(whose.session),
                          .salt = std::move(whose.salt),
                          .streaming = choice.followers > 0,
                          .explain = whose.explain && choice.index == 0,
                          .urgency = engine::urgency_of(whose, submitted),
                          .followers = choice.followers,
                          .follows = choice.index > 0});
    }
    auto channels = engine.submit(std::move(requests));
    if (channels.ok() && first.empty()) {
      first.assign(channels->begin(), channels->end());
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
