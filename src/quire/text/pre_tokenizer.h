// Pre-tokenizers: cutting normalized text into the pieces that the model sees one by one.
// Semantics are those of Hugging Face `tokenizers` 0.23 (pre_tokenizers/*.rs); a Sequence is the
// list of its members.
//
// Thread rule: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/pattern.h"

namespace quire::text {

// Pieces of one text: ranges of a shared buffer, ascending, disjoint, not empty. Cutting changes
// the ranges only.
struct Pieces {
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  std::string text;
  std::vector<Range> ranges;
  std::size_t origin_bytes = 0;  // bytes at the start that stem from the input's first character
  base::WorkMeter* meter = nullptr;  // borrowed

  [[nodiscard]] std::string_view view(Range range) const {
    return std::string_view(text).substr(range.begin, range.end - range.begin);
  }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Leaves the pieces unfinished when their meter fails.
  virtual void apply(Pieces& pieces) const = 0;
};

using PreTokenizers = std::vector<std::unique_ptr<const PreTokenizer>>;

// Ways to treat the matches of a delimiter.
enum class SplitBehavior : std::uint8_t {
  kRemoved,             // dropped
  kIsolated,            // a piece each
  kMergedWithPrevious,  // the end of the piece before
  kMergedWithNext,      // the start of the piece after
  kContiguous,          // runs of matches become one piece
};

// Collects the matches of one piece, left to right, and appends what they leave to `out`.
class PieceCutter {
 public:
  PieceCutter(SplitBehavior behavior, bool invert, std::vector<Pieces::Range>& out)
      : behavior_(behavior), invert_(invert), out_(&out) {}

  void start(Pieces::Range piece);
  // Notes a match inside the started piece, behind the ones before; may be empty.
  void match(std::size_t begin, std::size_t end);
  void finish();

 private:
  void part(std::size_t begin, std::size_t end, bool is_match);

  SplitBehavior behavior_;
  bool invert_;
  std::vector<Pieces::Range>* out_;
  Pieces::Range piece_{};
  std::size_t at_ = 0;          // place behind the last match
  std::size_t first_part_ = 0;  // index in out_ of the first part of the started piece
  bool last_was_match_ = false;
};

enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };

struct MetaspaceOptions {
  char32_t replacement = 0x2581;
  PrependScheme prepend_scheme = PrependScheme::kAlways;
  bool split = true;
};
// Reads {"type": "Metaspace", ...}, shared by pre-tokenizer and decoder.
[[nodiscard]] Result<MetaspaceOptions> metaspace_from_json(base::JsonView object);

[[nodiscard]] std::unique_ptr<const PreTokenizer> make_split(Pattern pattern,
                                                             SplitBehavior behavior, bool invert);
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_bert_pre_tokenizer();
// Cuts before every U+2581 that follows another character. Harmless for a BPE model whose merges
// never cross that border, and it makes pieces short.
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_metaspace_cut();
// Puts `prefix` before every piece.
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_piece_prefix(std::string prefix);

struct PreTokenizerSet {
  PreTokenizers steps;
  // The last step would spell bytes in the byte-level alphabet and was left for the model to do.
  bool spells_bytes = false;
};

// Reads the "pre_tokenizer" section of tokenizer.json; null gives none. kUnsupported naming an
// unknown type. With `defer_byte_level` a last ByteLevel step does all but the spelling.
[[nodiscard]] Result<PreTokenizerSet> pre_tokenizers_from_json(base::JsonView section,
                                                               bool defer_byte_level);

}  // namespace quire::text
