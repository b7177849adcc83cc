// Chats in which chunks are named: exactly ChunkedLLM::generate_from_chunks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/chat.h"
#include "api/chat_renderer.h"
#include "api/errors.h"
#include "api/generation.h"
#include "api/json.h"
#include "api/messages.h"
#include "api/sampling.h"
#include "api/source.h"
#include "engine.h"
#include "objects/chunks.h"
#include "objects/state.h"
#include "quire/chat.h"
#include "quire/chunks.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {
namespace {

constexpr const char* kAllowedShape =
    "a chunk may stand in the system message or in one user message before its question; see "
    "docs/http.md#chunks";

// A text, or the id of a chunk, of a composition.
struct ChatPiece {
  std::string text;
  std::string chunk_id;
  std::string path;
};

// The composition that a chat stands for.
struct ChunkChat {
  std::optional<ChatPiece> system;
  std::vector<ChatPiece> contexts;
  ChatPiece query;
};

ApiError wrong_shape(std::string path) {
  ApiError error = invalid(std::move(path), kAllowedShape);
  error.code = "invalid_composition";
  error.cause = ErrorCode::kInvalidComposition;
  return error;
}

ChatPiece piece_of(const MessagePart& part, const std::string& path) {
  return part.type == "chunk" ? ChatPiece{.chunk_id = part.chunk_id, .path = path + ".chunk_id"}
                              : ChatPiece{.text = part.text, .path = path};
}

Checked<ChatPiece> read_system(const Message& message, const std::string& path) {
  if (!message.has_chunk()) {
    return ChatPiece{.text = message.text(), .path = path};
  }
  if (message.parts.size() != 1) {
    return wrong_shape(element_path(path, 1));
  }
  return piece_of(message.parts.front(), element_path(path, 0));
}

// Reads context chunks, then one text or one query chunk. `query_id`: that of `quire.chunks`.
Check read_user(const Message& message, const std::string& path, ChunkChat& chat) {
  const std::vector<MessagePart>& parts = message.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ChatPiece piece = piece_of(parts[i], element_path(path, i));
    const bool last = i + 1 == parts.size();
    if (!last && piece.chunk_id.empty()) {
      return wrong_shape(element_path(path, i));
    }
    if (last) {
      chat.query = std::move(piece);
    } else {
      chat.contexts.push_back(std::move(piece));
    }
  }
  if (parts.empty() || (chat.query.chunk_id.empty() && chat.query.text.empty())) {
    return wrong_shape(path);
  }
  return passed();
}

// Adds the ids of `quire.chunks`, in front of one user text.
Check add_named(const CompositionSpec& named, ChunkChat& chat) {
  const std::string path = "quire.chunks";
  if (!chat.contexts.empty() || !chat.query.chunk_id.empty()) {
    return wrong_shape(path);
  }
  if (!named.system_chunk_id.empty()) {
    if (chat.system) {
      return invalid(path + ".system", "the messages have a system message, too");
    }
    chat.system = ChatPiece{.chunk_id = named.system_chunk_id, .path = path + ".system"};
  }
  for (std::size_t i = 0; i < named.context_chunk_ids.size(); ++i) {
    chat.contexts.push_back(
        {.chunk_id = named.context_chunk_ids[i], .path = element_path(path + ".contexts", i)});
  }
  if (!named.query_chunk_id.empty()) {
    return invalid(path + ".query",
                   "the messages have a question, too; name it in "
                   "messages[i].content, or use POST /v1/generate");
  }
  return passed();
}

Checked<ChunkChat> read_chunk_chat(const ChatRequest& request) {
  const std::vector<Message>& messages = request.prompt.messages;
  ChunkChat chat;
  std::size_t next = 0;
  const auto path_of = [](std::size_t i) { return element_path("messages", i) + ".content"; };
  if (messages.front().role == "system") {
    QUIRE_TRY(chat.system, read_system(messages.front(), path_of(0)));
    next = 1;
  }
  if (next >= messages.size() || messages[next].role != "user") {
    return wrong_shape(next < messages.size() ? element_path("messages", next) : "messages");
  }
  if (next + 1 != messages.size()) {
    return wrong_shape(element_path("messages", next + 1));
  }
  QUIRE_TRY_STATUS(read_user(messages[next], path_of(next), chat));
  if (request.openai.extension.names_chunks) {
    QUIRE_TRY_STATUS(add_named(request.openai.extension.how, chat));
  }
  return chat;
}

// Chunks that a request has made and that go with it.
struct OwnChunks {
  std::vector<std::string> ids;
  // Uses that the request itself is.
  std::int64_t uses = 1;
};

// Deletes what nobody else has used or registered meanwhile. For a worker.
void delete_own(ChunkedLLM& llm, const OwnChunks& own, const std::string& salt) {
  for (const std::string& id : own.ids) {
    const auto info = llm.get_chunk(id, salt);
    if (info.ok() && info->access_count <= own.uses && !info->pinned) {
      (void)llm.delete_chunk(id, false, salt).ok();
    }
  }
}

// Holds the composition that a worker makes of a chat; its chunks are there.
struct ComposedChat {
  CompositionSpec spec;
  std::int64_t tokens = 0;
  // Ids of a prompt that opens the answer as the composition does.
  std::vector<TokenId> opening = {};
  OwnChunks own = {};
};

// Returns the error of a chunk, with the path at which the client has named it.
ApiError named_error(ApiError error, const ChunkChat& chat) {
  const auto note = [&](const ChatPiece& piece) {
    if (!error.chunk_id.empty() && piece.chunk_id == error.chunk_id) {
      error.param = piece.path;
    }
  };
  if (error.code == std::string_view("chunk_not_found")) {
    error.param = "messages";
    if (chat.system) {
      note(*chat.system);
    }
    std::ranges::for_each(chat.contexts, note);
    note(chat.query);
  }
  return error;
}

// Registers the texts of a chat.
class ChatComposer {
 public:
  ChatComposer(std::shared_ptr<Objects> objects, ChunkedLLM& llm, const CallPtr& call,
               std::int64_t bytes_per_token)
      : objects_(std::move(objects)), llm_(llm), call_(call), bytes_per_token_(bytes_per_token) {}

  // Returns the id of a piece, whose text is registered.
  Checked<std::string> id_of(const ChatPiece& piece, ChunkType type) {
    if (!piece.chunk_id.empty()) {
      return piece.chunk_id;
    }
    std::vector<ChunkContent> contents(1);
    contents.front().content = piece.text;
    contents.front().type = type;
    QUIRE_TRY(const auto registered,
              register_for(objects_, llm_, call_, std::move(contents), bytes_per_token_));
    if (registered.front().created) {
      made_.push_back(registered.front().chunk_id);
    }
    return registered.front().chunk_id;
  }
  [[nodiscard]] const std::vector<std::string>& made() const { return made_; }

 private:
  std::shared_ptr<Objects> objects_;
  ChunkedLLM& llm_;
  const CallPtr& call_;
  std::int64_t bytes_per_token_;
  std::vector<std::string> made_;
};

// Returns the ids of a short chat, whose end is that of every prompt. None where the template
// refuses it: then the answer does not begin inside of thinking.
std::vector<TokenId> opening_ids(const Engine& engine, const Interrupt& interrupted) {
  const auto tokenizer = engine.tokenizer();
  const ChatMessage question{.role = "user", .content = "?"};
  auto ids = tokenizer.ok()
                 ? tokenizer->apply_chat_template(std::span(&question, 1), true, "{}", interrupted)
                 : tokenizer.error();
  return ids.ok() ? std::move(ids).value() : std::vector<TokenId>();
}

Checked<ComposedChat> compose_chat(ChatComposer& composer, Engine& engine, const ChunkChat& chat,
                                   const ChatRequest& request, const std::string& salt,
                                   const Interrupt& interrupted) {
  ComposedChat composed{.spec = request.openai.extension.how};
  CompositionSpec& spec = composed.spec;
  spec.salt = salt;
  spec.without_system = !chat.system;
  spec.context_chunk_ids.clear();
  spec.system_chunk_id.clear();
  for (const ChatPiece& context : chat.contexts) {
    spec.context_chunk_ids.push_back(context.chunk_id);
  }
  if (chat.system) {
    QUIRE_TRY(spec.system_chunk_id, composer.id_of(*chat.system, ChunkType::kSystemPrompt));
  }
  QUIRE_TRY(spec.query_chunk_id, composer.id_of(chat.query, ChunkType::kQuery));
  auto encoded = encode_source(engine, {.prompt = spec, .path = "messages"}, salt, interrupted);
  if (!encoded.ok()) {
    return named_error(std::move(encoded).error(), chat);
  }
  composed.tokens = encoded->tokens;
  composed.opening = opening_ids(engine, interrupted);
  composed.own.ids = composer.made();
  return composed;
}

void start_chat(Services& services, const CallPtr& call, ChatRequest& request,
                ComposedChat composed) {
  GenerationPlan plan{.extension = request.openai.extension, .stream = request.openai.stream};
  PromptPlan prompt{.sampling = request.openai.sampling, .choices = request.openai.n};
  prompt.tokens = composed.tokens;
  prompt.path = "messages";
  prompt.sampling.max_tokens =
      output_length(request.openai.max_tokens, services.config->default_max_tokens,
                    services.engine->facts().context_tokens - prompt.tokens,
                    call->caller->limits.max_completion_tokens);
  prompt.options.session = request.openai.extension.session;
  prompt.options.salt = engine_salt(call->caller->tenant);
  if (!request.openai.extension.persist_chunks && !composed.own.ids.empty()) {
    composed.own.uses = request.openai.n;
    plan.keeps =
        std::shared_ptr<void>(nullptr, [&loop = services.loop, engine = services.engine,
                                        own = composed.own, salt = prompt.options.salt](void*) {
          loop.work([engine, own, salt] { delete_own(*engine->chunks(), own, salt); });
        });
  }
  request.answers.prompt_ids = std::move(composed.opening);
  prompt.prompt = std::move(composed.spec);
  request.openai.prompt_tokens += prompt.tokens;
  plan.prompts.push_back(std::move(prompt));
  GenerationRun::start(services, call, std::move(plan),
                       chat_renderer(services, request.openai, std::move(request.answers)));
}

}  // namespace

void chat_with_chunks(Services& services, CallPtr call, ChatRequest request) {
  auto chat = read_chunk_chat(request);
  if (!chat.ok()) {
    return send_error(services, *call, std::move(chat).error());
  }
  // Texts are registered, and so computed, only where the request could be admitted.
  auto ticket = enter_admission(services, *call);
  if (!ticket.ok()) {
    return send_error(services, *call, std::move(ticket).error());
  }
  auto kept = std::make_shared<ChatRequest>(std::move(request));
  on_worker<ComposedChat>(
      services, call,
      [call, kept, engine = services.engine, objects = services.objects,
       chat = std::move(chat).value(), held = std::move(ticket).value(),
       bytes = kv_bytes_per_token(services)]() mutable -> Checked<ComposedChat> {
        QUIRE_TRY(ChunkedLLM* const llm, chunk_registry(*engine));
        const std::string salt = engine_salt(call->caller->tenant);
        ChatComposer composer(objects, *llm, call, bytes);
        auto composed = compose_chat(composer, *engine, chat, *kept, salt, Call::interrupt(call));
        held.reset();
        if (!composed.ok() && !kept->openai.extension.persist_chunks) {
          delete_own(*llm, {.ids = composer.made(), .uses = 0}, salt);
        }
        return composed;
      },
      [&services, call, kept](ComposedChat composed) {
        start_chat(services, call, *kept, std::move(composed));
      });
}

}  // namespace quire::server
