// Threads beside each other get what each gets alone, bit for bit, and leave no block behind; run
// under ThreadSanitizer in CI. Each has sequences and a chunk of its own, and all compose the same
// chunks. Oracle: the same walks, one after the other, in an LLM of their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/sanitized.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::uint32_t kWalks = 6;
constexpr int kSteps = base::kSanitized ? 25 : 100;

// Opens it with blocks of five tokens, so that most are shared in part.
ChunkedLLM open_small_blocks() {
  return ChunkedLLM::open(kModel, here({.block_tokens = 5, .threads = 2})).value();
}

// A system chunk, three contexts under it, and a query.
struct Shared {
  explicit Shared(ChunkedLLM& llm)
      : system(llm.register_chunk({.content = some_ids(13, 1), .type = ChunkType::kSystemPrompt})
                   .value()),
        query(llm.register_chunk({.content = some_ids(4, 5), .type = ChunkType::kQuery}).value()) {
    for (const std::uint32_t seed : {2, 3, 4}) {
      contexts.push_back(llm.register_chunk({.content = some_ids(6 + 4 * seed, seed)}).value());
    }
  }
  std::string system, query;
  std::vector<std::string> contexts;
};

// One thread's walk: what it does follows from its number alone.
class Walk {
 public:
  // All that came of it: ids, and logits.
  struct Seen {
    std::vector<Ids> ids;
    std::vector<std::vector<float>> logits;
    friend bool operator==(const Seen&, const Seen&) = default;
  };

  Walk(ChunkedLLM& llm, const Shared& shared, const std::string& file, std::uint32_t number)
      : llm_(llm), shared_(shared), file_(file), own_ids_(some_ids(17, 20 + number)) {
    random_.seed(number);
  }

  Seen run() {
    const std::vector<std::function<void()>> all = {
        [this] { begin(); },  [this] { append(); },  [this] { generate(); },
        [this] { fork(); },   [this] { edit(); },    [this] { cut(); },
        [this] { prompt(); }, [this] { compose(); }, [this] { begin_behind_chunks(); },
        [this] { renew(); },  [this] { reload(); },  [this] { infer_behind(); }};
    renew();
    begin();
    for (int i = 0; i < kSteps && !testing::Test::HasFailure(); ++i) {
      all[below(all.size())]();
    }
    for (Sequence& sequence : sequences_) {
      seen_.ids.push_back(sequence.tokens());
      seen_.logits.push_back(sequence.logits().value());
    }
    sequences_.clear();
    EXPECT_TRUE(llm_.delete_chunk(own_).value());
    return std::move(seen_);
  }

 private:
  static constexpr std::size_t kMostSequences = 3;
  static constexpr std::int64_t kLong = 60;  // tokens, after which a sequence is cut

  [[nodiscard]] std::size_t below(std::size_t n) { return random_() % n; }
  [[nodiscard]] Sequence& any() { return sequences_[below(sequences_.size())]; }
  [[nodiscard]] std::int64_t place_in(const Sequence& sequence) {
    return 1 + static_cast<std::int64_t>(below(static_cast<std::size_t>(sequence.num_tokens())));
  }
  // Returns one of few pieces, so that threads meet at the same prefixes.
  [[nodiscard]] Ids piece() {
    const std::size_t which = below(6);
    return some_ids(3 + 2 * which, 10 + static_cast<std::uint32_t>(which));
  }
  [[nodiscard]] SamplingParams params() {
    const auto count = static_cast<std::int32_t>(1 + below(6));
    const double temperature = below(2) == 0 ? 0 : 1;
    return {.temperature = temperature, .max_tokens = count, .ignore_eos = true, .seed = 9};
  }
  [[nodiscard]] CompositionSpec any_spec() {
    CompositionSpec spec{.system_chunk_id = shared_.system,
                         .context_chunk_ids = {shared_.contexts[below(3)], own_},
                         .query_chunk_id = shared_.query,
                         .mode = static_cast<ReuseMode>(below(4))};
    std::rotate(spec.context_chunk_ids.begin(), spec.context_chunk_ids.begin() + below(2),
                spec.context_chunk_ids.end());
    const bool blends = spec.mode == ReuseMode::kBlend;
    spec.computed_in_place = blends || (spec.mode == ReuseMode::kAnchored && below(2) == 0);
    spec.blend.share = blends ? 0.3 : 0;
    return spec;
  }

  void note(const Result<GenerationOutput>& output) {
    ASSERT_TRUE(output.ok()) << output.error().message;
    seen_.ids.push_back(output->token_ids);
  }
  void keep(Result<Sequence> sequence) {
    ASSERT_TRUE(sequence.ok()) << sequence.error().message;
    if (sequences_.size() == kMostSequences) {
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(below(kMostSequences)));
    }
    sequences_.push_back(std::move(sequence).value());
  }

  void begin() { keep(llm_.llm().sequence(joined(piece(), piece()))); }
  void begin_behind_chunks() { keep(llm_.sequence(any_spec())); }
  void fork() { keep(any().fork()); }
  void append() {
    Sequence& sequence = any();
    EXPECT_TRUE(sequence.append(piece()).ok());
    if (sequence.num_tokens() > kLong) {
      EXPECT_TRUE(sequence.rollback_to(kLong / 2).ok());
    }
  }
  void generate() { note(any().generate(params())); }
  void cut() {
    Sequence& sequence = any();
    EXPECT_TRUE(sequence.rollback_to(place_in(sequence)).ok());
  }
  void edit() {
    Sequence& sequence = any();
    const std::int64_t stop = place_in(sequence);
    const EditMode mode = below(2) == 0 ? EditMode::kExact : EditMode::kApproximate;
    EXPECT_TRUE(sequence.replace(stop - 1, stop, piece(), {}, mode).ok());
  }
  void prompt() { note(llm_.llm().generate(joined(piece(), piece()), params())); }
  void compose() { note(llm_.generate_from_chunks(any_spec(), params())); }
  // Renews chunks. Those that others compose meanwhile stay with them.
  void renew() {
    EXPECT_EQ(llm_.delete_chunk(own_).value(), !own_.empty());
    own_ =
        llm_.register_chunk({.content = own_ids_, .options = {.anchor = shared_.system}}).value();
  }
  void reload() {
    EXPECT_TRUE(any().save(file_).ok());
    keep(llm_.llm().load_sequence(file_, {.wait = below(2) == 0}));
  }
  void infer_behind() {
    const Sequence& sequence = any();
    const BlockList blocks = sequence.blocks()->first(place_in(sequence)).value();
    note(llm_.llm().infer_from_blocks(blocks, piece(), params()));
  }

  ChunkedLLM& llm_;
  const Shared& shared_;
  const std::string file_;
  const Ids own_ids_;
  std::mt19937 random_;
  std::string own_;
  std::vector<Sequence> sequences_;
  Seen seen_;
};

// Runs all walks in an LLM of their own: `beside` each other, or one after the other.
std::vector<Walk::Seen> walk_all(bool beside) {
  const TemporaryFolder folder;
  ChunkedLLM llm = open_small_blocks();
  const Shared shared(llm);
  std::vector<Walk::Seen> seen(kWalks);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kWalks; ++i) {
    threads.emplace_back(
        [&, i] { seen[i] = Walk(llm, shared, folder.path() / std::to_string(i), i).run(); });
    if (!beside) {
      threads.back().join();
    }
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) {
      thread.join();
    }
  }
  EXPECT_EQ(llm.clear_chunks().value(), std::ssize(shared.contexts) + 2);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "requests_running"), 0);
  return seen;
}

TEST(SameBitsThreads, EachWalkSeesWhatItSeesAloneAndLeavesNoBlock) {
  const std::vector<Walk::Seen> alone = walk_all(false);
  ASSERT_FALSE(HasFailure());
  const std::vector<Walk::Seen> beside = walk_all(true);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_GT(alone[i].ids.size(), static_cast<std::size_t>(kSteps / 4));
    EXPECT_TRUE(beside[i] == alone[i]) << "walk " << i;
  }
}

}  // namespace
}  // namespace quire
