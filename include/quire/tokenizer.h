// Tokenizer: turns text into ids and back as the model's own files define it, and renders the
// model's chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chat.h"  // IWYU pragma: export
#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

class AnswerParser;

// A handle on the text side of a model.
//
// Ownership: copies are cheap and share one immutable tokenizer, which may outlive its LLM.
// Threads: any number of threads may call at once. All work is done in the calling thread; nothing
// waits for an engine.
//
// Errors of every call that works on text:
// * kInvalidArgument names the limit that ran out, where the tokenizer's or template's file makes
//   endless work of a text. The limits grow with the input.
// * kCancelled soon after `interrupted` has returned true.
// * kOutOfBlocks when the machine refuses memory.
class QUIRE_API Tokenizer {
 public:
  // Loads the tokenizer of a model folder or a GGUF file. Reads no weights. Blocks until the files
  // are read.
  // Errors: those of LLM::open. kUnsupported for a preset, which has no tokenizer.
  [[nodiscard]] static Result<Tokenizer> open(const std::string& model);

  // Returns the ids of a text. Special tokens that are written in `text` become their ids, as in
  // the original libraries.
  // `add_special_tokens` adds what the model's files put around a text, such as BOS. Any bytes are
  // accepted: ill-formed UTF-8 counts as U+FFFD.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    bool add_special_tokens = true,
                                                    const Interrupt& interrupted = {}) const;
  // Returns the ids of a text in which special tokens are ordinary text, and adds none.
  [[nodiscard]] Result<std::vector<TokenId>> encode_literally(
      std::string_view text, const Interrupt& interrupted = {}) const;
  // Returns the text of the ids. `skip_special_tokens` leaves special tokens out. An id without a
  // token, such as the padding of a vocabulary, has no text.
  // Errors: kInvalidArgument names the first id that the model has no row for.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           bool skip_special_tokens = true,
                                           const Interrupt& interrupted = {}) const;
  // Returns the vocabulary's own spelling of an id.
  // Errors: kInvalidArgument for an id without a token, padding included.
  [[nodiscard]] Result<std::string> id_to_token(TokenId id) const;
  // Returns exactly the bytes that an id stands for inside a text. The bytes may be a part of a
  // character. A special token stands for its spelling.
  // Errors: kInvalidArgument for an id without a token, padding included.
  [[nodiscard]] Result<std::string> token_bytes(TokenId id) const;
  // Returns the id whose spelling in the vocabulary is `token`, or nullopt.
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;

  // Renders the chat template and returns the ids of the prompt.
  // `messages_json` is a JSON list of {"role", "content", ...}. `variables_json` is a JSON object
  // of further template variables (tools, documents, enable_thinking, ...). `add_generation_prompt`
  // adds the opening of the answer.
  // A special token counts where the template writes it, also around a role or a plain variable.
  // The text of messages never becomes a special token.
  // With a variable "tools" the model's own template for tools is used, if there is one.
  // Errors: kUnsupported when the model has no template. kInvalidArgument for malformed JSON, or
  // with the template's own message.
  [[nodiscard]] Result<std::vector<TokenId>> apply_chat_template(
      std::string_view messages_json, bool add_generation_prompt = true,
      std::string_view variables_json = "{}", const Interrupt& interrupted = {}) const;
  // Renders the chat template and returns the plain text of the prompt. Arguments and errors are
  // those of apply_chat_template().
  // Special tokens are only spelled out here: encoding the text cannot tell the template's from
  // those that a message spells.
  [[nodiscard]] Result<std::string> render_chat_template(std::string_view messages_json,
                                                         bool add_generation_prompt = true,
                                                         std::string_view variables_json = "{}",
                                                         const Interrupt& interrupted = {}) const;
  // Does as the calls above, with typed messages.
  // Errors: those of the calls above, and of to_json(messages).
  [[nodiscard]] Result<std::vector<TokenId>> apply_chat_template(
      std::span<const ChatMessage> messages, bool add_generation_prompt = true,
      std::string_view variables_json = "{}", const Interrupt& interrupted = {}) const;
  [[nodiscard]] Result<std::string> render_chat_template(std::span<const ChatMessage> messages,
                                                         bool add_generation_prompt = true,
                                                         std::string_view variables_json = "{}",
                                                         const Interrupt& interrupted = {}) const;
  // Returns true when the model has a chat template that can be used. O(1).
  [[nodiscard]] bool has_chat_template() const;
  // Returns the variables that the chat template reads, in alphabetical order. Empty without a
  // template.
  // `with_tools` asks for the template that is used when there are tools.
  [[nodiscard]] std::vector<std::string> template_variables(bool with_tools = false) const;
  // Returns the names and strings in tags of the chat template, in alphabetical order. The message
  // keys and roles that it reads are among them. Empty without a template.
  [[nodiscard]] std::vector<std::string> template_words(bool with_tools = false) const;

  // Returns a parser for the answer to a prompt of these ids (quire/answer.h). The ids tell whether
  // the answer begins inside thinking, and give tool calls their ids.
  // `tools_json` is the template's variable "tools", a JSON list. Tool calls stay text where it is
  // empty. Its schemas tell texts from numbers where the style's marks do not.
  // A model without a template has a parser for which all text is content.
  // Errors: kInvalidArgument for tools that are no JSON list.
  [[nodiscard]] Result<AnswerParser> answer_parser(std::span<const TokenId> prompt_ids,
                                                   std::string_view tools_json = "[]") const;

  // Returns the highest id of the vocabulary plus 1. A model may have more rows. O(1).
  [[nodiscard]] std::int32_t vocab_size() const;
  // Returns the id of the token that begins a text, or nullopt. O(1).
  [[nodiscard]] std::optional<TokenId> bos_token_id() const;
  // Returns bos_token_id() if prompts begin with it, else nullopt. The chat template decides;
  // without a template encode() does.
  // Renders the template each time, so keep the answer.
  [[nodiscard]] std::optional<TokenId> leading_bos_token_id() const;
  // Returns the id of the token that ends a text, or nullopt. O(1).
  [[nodiscard]] std::optional<TokenId> eos_token_id() const;
  // Returns the id of the padding token, or nullopt. O(1).
  [[nodiscard]] std::optional<TokenId> pad_token_id() const;
  // Returns the id of the token for unknown text, or nullopt. O(1).
  [[nodiscard]] std::optional<TokenId> unk_token_id() const;

  // For the library itself.
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire
