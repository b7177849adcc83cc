#include "quire/chunks/chunk_setup.h"

#include <optional>
#include <utility>

#include "quire/chunk_types.h"
#include "quire/engine/model_bundle.h"
#include "quire/text/chunk_format.h"
#include "quire/text/template_cutter.h"

namespace quire::chunks {
namespace {

text::Affixes to_affixes(const ChunkAffixes& given) {
  return {.prefix = given.prefix, .suffix = given.suffix};
}

void choose_format(const engine::ModelBundle& bundle, ChunkSetup& setup) {
  const auto& text = bundle.text;
  if (text == nullptr) {
    setup.format_error = bundle.text_error;
    return;
  }
  const auto& chat_template = text->chat_template;
  if (text->template_unusable) {  // the model learned a format, and plain text is not it
    setup.format_error = text->template_error;
    return;
  }
  if (!chat_template) {
    setup.format = text::plain_format(text->tokenizer);
    return;
  }
  auto format =
      text::cut_chat_template(*chat_template, text->tokenizer, text->bos_token, text->eos_token);
  if (format.ok()) {
    setup.format = std::move(format).value();
  } else {
    setup.format_error = format.error().message;
  }
}

}  // namespace

ChunkSetup make_chunk_setup(const engine::ModelBundle& bundle,
                            const std::optional<quire::ChunkFormat>& wanted) {
  ChunkSetup setup;
  if (wanted) {
    setup.format = text::ChunkFormat{.system = to_affixes(wanted->system),
                                     .context = to_affixes(wanted->context),
                                     .query = to_affixes(wanted->query),
                                     .contexts_as = "own"};
    setup.format->context.continues = setup.format->query.continues = true;
  } else {
    choose_format(bundle, setup);
  }
  return setup;
}

}  // namespace quire::chunks
