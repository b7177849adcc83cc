// State of a public Tokenizer: a share of the model's text side.
#pragma once

#include <memory>

#include "quire/engine/model_bundle.h"
#include "quire/tokenizer.h"

namespace quire {

struct Tokenizer::Impl {
  std::shared_ptr<const engine::TextBundle> text;
};

// Wraps a loaded text side.
[[nodiscard]] inline Tokenizer wrap_tokenizer(std::shared_ptr<const engine::TextBundle> text) {
  return Tokenizer(std::make_shared<Tokenizer::Impl>(Tokenizer::Impl{std::move(text)}));
}

}  // namespace quire
