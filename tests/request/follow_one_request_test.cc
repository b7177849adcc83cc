// The way of a request, walked by hand on a two-layer model (docs/architecture.md, "The way of one
// generate"): each intermediate is printed, and the result equals the engine's.
#include <gtest/gtest.h>

#include <iostream>
#include <iterator>
#include <string>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/llm.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/scheduler.h"
#include "quire/sched/types.h"
#include "quire/text/detokenizer.h"

namespace quire {
namespace {

template <class List>
void show(const char* step, const List& list) {
  std::cout << step;
  for (const auto& item : list) {
    std::cout << ' ' << item;
  }
  std::cout << '\n';
}

TEST(FollowOneRequest, TheEightStepsByHandGiveWhatTheEngineGives) {
  const std::string path = QUIRE_SOURCE_DIR "/models/cardfile/draft";  // two layers
  const std::string prompt = "<bos><sys> You are the keeper of a card file.<q> Who is it?<a>";
  constexpr std::int32_t kBlockTokens = 32, kBlocks = 64, kNewTokens = 8;

  device::ThreadPool pool(2);
  const kernels::KernelContext context{&kernels::kernels_for(device::best_isa()), &pool};
  auto bundle = engine::open_model(context, path, {});
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  const text::Tokenizer& tokenizer = bundle->text->tokenizer;
  const auto geometry = bundle->decoder->config().kv_geometry(bundle->kv_dtype, kBlockTokens);
  auto paged_pool = kv_store::PagedPool::create(geometry, kBlocks);
  ASSERT_TRUE(paged_pool.ok());
  std::vector<tensor::PagedKVView> views;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    views.push_back(paged_pool->view(layer));
  }
  kv::Ledger ledger({.num_blocks = kBlocks, .block_tokens = kBlockTokens});
  sched::Scheduler scheduler({}, ledger);

  const std::vector<TokenId> ids = tokenizer.encode(prompt).value();  // 1
  show("1 text -> tokens", ids);
  std::cout << "2 tokens -> known KV " << ledger.cache().match(ids) << '\n';
  const RequestId id{1};
  ASSERT_TRUE(scheduler.submit({.id = id, .prompt = ids, .max_new_tokens = kNewTokens}).ok());

  engine::BatchBuilder builder;
  sampling::Sampler sampler;
  text::Detokenizer detokenizer(tokenizer);
  const SamplingParams params{.temperature = 0, .max_tokens = kNewTokens, .ignore_eos = true};
  std::vector<TokenId> output;
  std::string text;
  while (std::ssize(output) < kNewTokens) {
    auto runs = scheduler.commit(scheduler.plan());  // 3
    ASSERT_TRUE(runs.ok());
    ASSERT_EQ(runs->size(), 1u);
    const sched::ScheduledRun run = runs->front();
    std::cout << "3 work now: tokens " << run.first << " to " << run.first + run.count << '\n';
    constexpr std::int32_t kLast = 1;  // of the run's rows: its logits are wanted
    const auto& batch = builder.build(*runs, {&kLast, 1}, ledger);  // 4
    show("4 positions", batch.positions);
    std::cout << "4 entries: " << batch.entries.size() << " over " << batch.entries[0].num_tokens
              << " tokens\n";
    const auto logits = bundle->decoder->forward(batch, views).value();  // 5 and 6
    std::cout << "5, 6 logits: " << logits.size() << " of one row\n";
    const auto token = sampler.sample(logits, {.params = &params,
                                               .index = static_cast<std::int32_t>(output.size()),
                                               .prompt = ids,
                                               .output = output});  // 7
    ASSERT_TRUE(token.ok()) << token.error().message;
    std::cout << "7 sampled " << token->id << '\n';
    output.push_back(token->id);
    text += detokenizer.push(token->id);  // 8
    std::cout << "8 text so far: " << text << '\n';
    scheduler.complete(run, token->id);
    ASSERT_TRUE(ledger.check().ok());
  }
  text += detokenizer.flush();
  EXPECT_TRUE(scheduler.finish(id));

  auto llm = LLM::open(path, {.threads = 2});
  ASSERT_TRUE(llm.ok());
  const auto whole = llm->generate(prompt, params);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(whole->prompt_token_ids, ids);
  EXPECT_EQ(whole->token_ids, output);
  EXPECT_EQ(whole->text, text);
}

}  // namespace
}  // namespace quire
