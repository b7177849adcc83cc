// Small endpoints of others about tokens: /tokenize, /detokenize, /apply-template and render.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/chat.h"
#include "api/completions.h"
#include "api/endpoints.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/messages.h"
#include "api/render.h"
#include "api/router.h"
#include "api/sampling.h"
#include "api/utf8.h"
#include "engine.h"
#include "quire/fields.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

std::span<const FieldRule> template_rules() {
  static const FieldRule rules[] = {
      {.name = "messages",
       .kinds = kArray,
       .help = "a chat, with the template's opening of an answer",
       .min_size = 1,
       .max_size = 65536,
       .members = &message_table(),
       .elements = kObject},
      {.name = "add_generation_prompt", .kinds = kBool, .help = "of a chat; default true"},
      {.name = "chat_template_kwargs", .kinds = kObject, .help = "variables of the template"},
      {.name = "model", .kinds = kString, .help = "a name of the model"},
  };
  return rules;
}

const FieldTable& tokenize_table() {
  static constexpr FieldRule kRules[] = {
      {.name = "content", .kinds = kString, .help = "a text, by default without special tokens"},
      {.name = "add_special", .kinds = kBool, .help = "of content: adds BOS and the like"},
      {.name = "parse_special",
       .kinds = kBool,
       .help = "of a text: the spelling of a special token counts as it; default true"},
      {.name = "with_pieces", .kinds = kBool, .help = "of content: ids with their text"},
      {.name = "prompt", .kinds = kString, .help = "a text, by default with special tokens"},
      {.name = "add_special_tokens", .kinds = kBool, .help = "of prompt: adds BOS and the like"},
      {.name = "return_token_strs", .kinds = kBool, .help = "of prompt and messages: spellings"},
  };
  static const FieldTable table{
      "TokenizeRequest", "A text or a chat to encode.", {kRules, template_rules()}};
  return table;
}

const FieldTable& detokenize_table() {
  static constexpr FieldRule kRules[] = {
      {.name = "tokens",
       .kinds = kArray,
       .help = "ids; special tokens are shown",
       .required = true,
       .max_size = 1 << 22,
       .elements = kInteger},
      {.name = "model", .kinds = kString, .help = "a name of the model"},
  };
  static const FieldTable table{"DetokenizeRequest", "Ids to decode.", {kRules}};
  return table;
}

const FieldTable& apply_table() {
  static const FieldTable table{"ApplyTemplateRequest", "A chat to render.", {template_rules()}};
  return table;
}

Checked<ChatPrompt> read_template(Call& call) {
  const Members members = call.members();
  const json::array* const list = members.array("messages");
  if (list == nullptr) {
    return missing("messages");
  }
  ChatPrompt prompt;
  QUIRE_TRY(prompt.messages, read_messages(*list, "messages", call.notes));
  prompt.add_generation_prompt = members.flag("add_generation_prompt", true);
  if (const json::object* const variables = members.object("chat_template_kwargs")) {
    prompt.variables = *variables;
  }
  return prompt;
}

// Holds what is to be encoded: a text in one of two vendors' names, or a chat.
struct TokenizeRequest {
  std::optional<std::string> content, prompt;
  std::optional<ChatPrompt> chat;
  bool special = false;
  bool parses = true;  // spellings of special tokens count
  bool pieces = false;
  bool spellings = false;
};

Checked<TokenizeRequest> read_tokenize(Call& call) {
  const Members members = call.members();
  const int given =
      int{members.has("content")} + int{members.has("prompt")} + int{members.has("messages")};
  if (given != 1) {
    return given == 0 ? missing("prompt")
                      : invalid("prompt", "content, prompt and messages exclude one another");
  }
  TokenizeRequest request{.parses = members.flag("parse_special", true)};
  if (const auto content = members.text("content")) {
    request.content = std::string(*content);
    request.special = members.flag("add_special");
    request.pieces = members.flag("with_pieces");
    return request;
  }
  request.spellings = members.flag("return_token_strs");
  if (const auto prompt = members.text("prompt")) {
    request.prompt = std::string(*prompt);
    request.special = members.flag("add_special_tokens", true);
    return request;
  }
  if (members.has("parse_special")) {
    return invalid("parse_special",
                   "is of content and prompt; a message's text never becomes a "
                   "special token");
  }
  QUIRE_TRY(request.chat, read_template(call));
  return request;
}

// Returns ids of a text in which special tokens are ordinary text. `special` adds what the model
// puts around a text, as it stands around a letter.
Checked<std::vector<TokenId>> encode_without_parsing(const Tokenizer& tokenizer,
                                                     std::string_view text, bool special,
                                                     const Interrupt& interrupted) {
  QUIRE_TRY(std::vector<TokenId> ids, tokenizer.encode_literally(text, interrupted));
  if (!special) {
    return ids;
  }
  QUIRE_TRY(const std::vector<TokenId> framed, tokenizer.encode("a", true, interrupted));
  QUIRE_TRY(const std::vector<TokenId> letter, tokenizer.encode("a", false, interrupted));
  const auto inside = std::ranges::search(framed, letter);
  if (letter.empty() || inside.empty()) {
    return unsupported("parse_special",
                       "this tokenizer has no fixed tokens around a text; send add_special: false");
  }
  ids.insert(ids.begin(), framed.begin(), inside.begin());
  ids.insert(ids.end(), inside.end(), framed.end());
  return ids;
}

json::value piece_json(const Tokenizer& tokenizer, TokenId id) {
  const std::string bytes = tokenizer.token_bytes(id).ok() ? *tokenizer.token_bytes(id) : "";
  json::object piece;
  piece["id"] = id;
  if (is_utf8(bytes)) {
    piece["piece"] = bytes;
  } else {
    json::array list;
    for (const char byte : bytes) {
      list.emplace_back(static_cast<std::int64_t>(static_cast<unsigned char>(byte)));
    }
    piece["piece"] = std::move(list);
  }
  return piece;
}

Checked<json::object> tokenize_on_worker(const Engine& engine, const TokenizeRequest& request,
                                         const Interrupt& interrupted) {
  QUIRE_TRY(const Tokenizer tokenizer, engine.tokenizer());
  json::object body;
  std::vector<TokenId> ids;
  const auto& text = request.content ? request.content : request.prompt;
  if (request.chat) {
    QUIRE_TRY(EncodedChat encoded, encode_chat(engine, *request.chat, interrupted));
    ids = std::move(encoded.ids);
  } else if (text) {
    if (request.parses) {
      QUIRE_TRY(ids, tokenizer.encode(*text, request.special, interrupted));
    } else {
      QUIRE_TRY(ids, encode_without_parsing(tokenizer, *text, request.special, interrupted));
    }
  }
  if (request.pieces) {
    json::array tokens;
    for (const TokenId id : ids) {
      tokens.push_back(piece_json(tokenizer, id));
    }
    body["tokens"] = std::move(tokens);
    return body;
  }
  body["tokens"] = ids_json(ids);
  if (request.content) {
    return body;
  }
  body["count"] = ids.size();
  body["max_model_len"] = engine.facts().context_tokens;
  body["token_strs"] = nullptr;
  if (request.spellings) {
    json::array spellings;
    for (const TokenId id : ids) {
      QUIRE_TRY(const std::string spelling, tokenizer.id_to_token(id));
      spellings.emplace_back(spelling);
    }
    body["token_strs"] = std::move(spellings);
  }
  return body;
}

void send_object(Services& services, const CallPtr& call,
                 std::function<Checked<json::object>()> work) {
  on_worker<json::object>(services, call, std::move(work), [&services, call](json::object body) {
    send_json(services, *call, std::move(body));
  });
}

void tokenize(Services& services, CallPtr call) {
  auto request = read_tokenize(*call);
  if (!request.ok()) {
    send_error(services, *call, std::move(request).error());
    return;
  }
  send_object(services, call,
              [engine = services.engine, request = std::move(request).value(),
               interrupted = Call::interrupt(call)] {
                return tokenize_on_worker(*engine, request, interrupted);
              });
}

void detokenize(Services& services, CallPtr call) {
  auto ids =
      read_ids(*call->members().array("tokens"), "tokens", services.engine->facts().vocab_size);
  if (!ids.ok()) {
    send_error(services, *call, std::move(ids).error());
    return;
  }
  send_object(services, call,
              [engine = services.engine, ids = std::move(ids).value(),
               interrupted = Call::interrupt(call)]() -> Checked<json::object> {
                QUIRE_TRY(const Tokenizer tokenizer, engine->tokenizer());
                QUIRE_TRY(const std::string text, tokenizer.decode(ids, false, interrupted));
                json::object body;
                body["content"] = text;
                body["prompt"] = text;
                return body;
              });
}

void apply_template(Services& services, CallPtr call) {
  auto prompt = read_template(*call);
  if (!prompt.ok()) {
    send_error(services, *call, std::move(prompt).error());
    return;
  }
  send_object(services, call,
              [engine = services.engine, prompt = std::move(prompt).value(),
               interrupted = Call::interrupt(call)]() -> Checked<json::object> {
                QUIRE_TRY(const std::string text, render_chat(*engine, prompt, interrupted));
                json::object body;
                body["prompt"] = text;
                return body;
              });
}

Checked<json::object> rendered(const PromptPlan& prompt, const std::string& request_id) {
  QUIRE_TRY(const std::string params, to_json(prompt.sampling));
  json::object body;
  body["request_id"] = request_id;
  body["token_ids"] = ids_json(std::get<std::vector<TokenId>>(prompt.prompt));
  body["sampling_params"] = json::parse(params);
  return body;
}

// Answers with what a plan would run.
void send_rendered(Services& services, const CallPtr& call, const GenerationPlan& plan) {
  json::array list;
  for (const PromptPlan& prompt : plan.prompts) {
    auto body = rendered(prompt, call->request->id);
    if (!body.ok()) {
      send_error(services, *call, std::move(body).error());
      return;
    }
    list.push_back(std::move(body).value());
  }
  send_json(services, *call, list.size() == 1 ? list.front() : json::value(list));
}

constexpr Endpoint tokens_endpoint(const char* pattern, const char* summary,
                                   const FieldTable& table, void (*handle)(Services&, CallPtr)) {
  return {
      .method = "POST", .pattern = pattern, .summary = summary, .body = &table, .handle = handle};
}

void render_chat_call(Services& services, CallPtr call) {
  plan_chat(services, std::move(call), send_rendered);
}
void render_completion_call(Services& services, CallPtr call) {
  plan_completion(services, std::move(call), send_rendered);
}

}  // namespace

std::span<const Endpoint> token_endpoints() {
  static const Endpoint endpoints[] = {
      tokens_endpoint("/tokenize", "Encodes a text or a chat.", tokenize_table(), tokenize),
      tokens_endpoint("/detokenize", "Decodes ids.", detokenize_table(), detokenize),
      tokens_endpoint("/apply-template", "Renders a chat as text.", apply_table(), apply_template),
      tokens_endpoint("/v1/chat/completions/render", "Says which ids a chat would run with.",
                      chat_table(), render_chat_call),
      tokens_endpoint("/v1/completions/render", "Says which ids a completion would run with.",
                      completion_table(), render_completion_call),
  };
  return endpoints;
}

}  // namespace quire::server
