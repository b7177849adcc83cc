// spelling_decoder_from_json: the "decoder" section of tokenizer.json.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/json_section.h"
#include "quire/text/pattern.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

using MadeStep = Result<decode::Step>;

MadeStep strip_step(base::JsonView object) {
  decode::Strip step;
  QUIRE_TRY(const char32_t content, get_char(object, "content", U' '));
  append_code_point(step.content, content);
  QUIRE_TRY(const std::int64_t start, base::get_int(object, "start", 0));
  QUIRE_TRY(const std::int64_t stop, base::get_int(object, "stop", 0));
  if (start < 0 || stop < 0) {
    return {ErrorCode::kInvalidArgument, base::str_cat("decoder Strip: start ", start, " and stop ",
                                                       stop, " must not be negative")};
  }
  step.start = static_cast<std::size_t>(start);
  step.stop = static_cast<std::size_t>(stop);
  return decode::Step(std::move(step));
}

MadeStep replace_step(base::JsonView object) {
  QUIRE_TRY(Pattern pattern, Pattern::from_json(object.find("pattern"), "decoder Replace"));
  QUIRE_TRY(std::string content, require_string(object, "content"));
  return decode::Step(
      decode::Replace{.pattern = std::move(pattern), .content = std::move(content)});
}

MadeStep metaspace(base::JsonView object) {
  QUIRE_TRY(const MetaspaceOptions options, metaspace_from_json(object));
  decode::Metaspace step;
  append_code_point(step.replacement, options.replacement);
  step.strip_first = options.prepend_scheme != PrependScheme::kNever;
  return decode::Step(std::move(step));
}

MadeStep word_piece(base::JsonView object) {
  decode::WordPiece step;
  QUIRE_TRY(step.prefix, base::get_string(object, "prefix", "##"));
  QUIRE_TRY(step.cleanup, base::get_bool(object, "cleanup", true));
  return decode::Step(std::move(step));
}

MadeStep ctc(base::JsonView object) {
  decode::Ctc step;
  QUIRE_TRY(step.pad_token, base::get_string(object, "pad_token", "<pad>"));
  QUIRE_TRY(step.word_delimiter_token, base::get_string(object, "word_delimiter_token", "|"));
  QUIRE_TRY(step.cleanup, base::get_bool(object, "cleanup", true));
  return decode::Step(std::move(step));
}

MadeStep make_step(const TypedSection& section) {
  const base::JsonView object = section.object;
  if (section.type == "ByteLevel") {
    return decode::Step(decode::ByteLevel{});
  }
  if (section.type == "ByteFallback") {
    return decode::Step(decode::ByteFallback{});
  }
  if (section.type == "Fuse") {
    return decode::Step(decode::Fuse{});
  }
  if (section.type == "Metaspace") {
    return metaspace(object);
  }
  if (section.type == "Strip") {
    return strip_step(object);
  }
  if (section.type == "Replace") {
    return replace_step(object);
  }
  if (section.type == "WordPiece") {
    return word_piece(object);
  }
  if (section.type == "BPEDecoder") {
    decode::Bpe step;
    QUIRE_TRY(step.suffix, base::get_string(object, "suffix", "</w>"));
    return decode::Step(std::move(step));
  }
  if (section.type == "CTC") {
    return ctc(object);
  }
  return unknown_type("decoder", section.type);
}

}  // namespace

Result<SpellingDecoder> spelling_decoder_from_json(base::JsonView section) {
  SpellingDecoder steps;
  QUIRE_TRY_STATUS(for_each_section(section, "decoder", "decoders", [&](const TypedSection& each) {
    auto step = make_step(each);
    if (!step.ok()) {
      return Status(std::move(step).error());
    }
    steps.push_back(std::move(step).value());
    return Status();
  }));
  if (steps.empty()) {
    if (section.is_null()) {
      steps.emplace_back(decode::JoinWithSpaces{});
    } else {
      steps.emplace_back(decode::Fuse{});
    }
  }
  return steps;
}

}  // namespace quire::text
