// After registration nothing is encoded. The linker puts a count before each of the tokenizer's two
// encoders, so that a call is seen wherever in the engine it is made.
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/work_meter.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/text/tokenizer.h"

namespace quire {
namespace {

std::atomic<int> encodings = 0;

}  // namespace

using Encoder = text::Tokenizer;
using Spans = std::span<const text::TextSpan>;

// A member function as the linker sees it: `this` is its first argument.
#define QUIRE_ENCODE                                                        \
  "_ZNK5quire4text9Tokenizer6encodeESt17basic_string_viewIcSt11char_traits" \
  "IcEERKNS0_13EncodeOptionsE"
#define QUIRE_ENCODE_SPANS                                                                  \
  "_ZNK5quire4text9Tokenizer12encode_spansESt4spanIKNS0_8TextSpanELm18446744073709551615EE" \
  "PNS_4base9WorkMeterE"
using Encoded = Result<Ids>;
Encoded encode(const Encoder* self, std::string_view text,
               const text::EncodeOptions& options) __asm__("__real_" QUIRE_ENCODE);
Encoded encode_spans(const Encoder* self, Spans spans,
                     base::WorkMeter* meter) __asm__("__real_" QUIRE_ENCODE_SPANS);
Encoded counted_encode(const Encoder* self, std::string_view text,
                       const text::EncodeOptions& options) __asm__("__wrap_" QUIRE_ENCODE);
Encoded counted_encode_spans(const Encoder* self, Spans spans,
                             base::WorkMeter* meter) __asm__("__wrap_" QUIRE_ENCODE_SPANS);

Encoded counted_encode(const Encoder* self, std::string_view text,
                       const text::EncodeOptions& options) {
  ++encodings;
  return encode(self, text, options);
}

Encoded counted_encode_spans(const Encoder* self, Spans spans, base::WorkMeter* meter) {
  ++encodings;
  return encode_spans(self, spans, meter);
}

namespace {

class EncodeTrap : public testing::Test {
 protected:
  EncodeTrap() {
    const auto add = [&](const char* text, ChunkType type) {
      encodings = 0;
      const std::string id = must(llm.register_chunk({.content = text, .type = type}));
      EXPECT_GT(encodings, 0) << "the trap is set: " << text;
      return id;
    };
    const std::string other = add("Answer briefly.", ChunkType::kSystemPrompt);
    const std::string keeper = add("Answer from the cards.", ChunkType::kSystemPrompt);
    const std::string ada = add("Card 7. Ada trades in apples.", ChunkType::kContext);
    const std::string lars = add("Card 9. Lars lives in Thornby.", ChunkType::kContext);
    const std::string query = add("What does Ada trade in?", ChunkType::kQuery);
    for (const std::string& system : {keeper, other}) {
      for (const ReuseMode mode :
           {ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kExact, ReuseMode::kBlend}) {
        specs.push_back({.system_chunk_id = system,
                         .context_chunk_ids = {ada, lars},
                         .query_chunk_id = query,
                         .mode = mode,
                         .bos_sink = mode == ReuseMode::kIndependent,
                         .blend = {.share = 0.5}});
      }
    }
    encodings = 0;
  }
  void TearDown() override { EXPECT_EQ(encodings, 0); }

  ChunkedLLM llm = must(ChunkedLLM::open(kModel, here({.threads = 2})));
  std::vector<CompositionSpec> specs;
  const SamplingParams params{.temperature = 0, .max_tokens = 4};
};

TEST_F(EncodeTrap, GeneratingFromRegisteredChunksEncodesNothing) {
  for (const CompositionSpec& spec : specs) {
    EXPECT_FALSE(must(llm.generate_from_chunks(spec, params)).token_ids.empty());
  }
}

TEST_F(EncodeTrap, NorDoesABatchAStreamOrASequenceOfThem) {
  EXPECT_EQ(must(llm.batch_generate_from_chunks(specs, {&params, 1})).size(), specs.size());
  for (const CompositionSpec& spec : specs) {
    Stream stream = must(llm.stream_from_chunks(spec, params));
    while (must(stream.next())) {
    }
    EXPECT_FALSE(stream.output().text.empty());
    EXPECT_GT(must(llm.logits_from_chunks(spec)).rows, 0);
    Sequence sequence = must(llm.sequence(spec));
    EXPECT_FALSE(must(sequence.generate(params)).token_ids.empty());
  }
}

TEST_F(EncodeTrap, NorDoComposingExplainingAndPreviewing) {
  for (const CompositionSpec& spec : specs) {
    EXPECT_EQ(must(llm.compose(spec)).info().segments.size(), 4u);
    EXPECT_EQ(must(llm.explain(spec)).size(), 4u);
    EXPECT_TRUE(must(llm.preview_composition(spec)).retokenizes_alike);
  }
}

}  // namespace
}  // namespace quire
