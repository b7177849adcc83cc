// Request, Response and Answer: what the transport and the API say to each other. Nothing here
// knows sockets, so that the API is tested without any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

struct Caller;

// A header field. Names are lower case.
struct HeaderField {
  std::string name;
  std::string value;
};

// A request whose head and body were read and are well-formed HTTP. Plain data.
struct Request {
  // "GET", "POST", ...
  std::string method;
  // Path as the client sent it: percent-encoded, without the query.
  std::string path;
  // Query as the client sent it, without "?".
  std::string query;
  // Fields in the order of the client.
  std::vector<HeaderField> headers;
  std::string body;
  // Address of the client, "127.0.0.1:40112", or "unix".
  std::string remote;
  // Id of the request: x-request-id of the client, or one that the transport made.
  std::string id;
  // Names the tenant and role that asks. Never null behind the transport's check of keys, which
  // stands in front of routing; null on the paths that need no key where none was given.
  std::shared_ptr<const Caller> caller;

  // Returns the value of the first field of that name, or "". Refers to the request.
  [[nodiscard]] std::string_view header(std::string_view name) const;
};

// A whole response. The transport adds content-length, date, x-request-id and request-id.
struct Response {
  int status = 200;
  // Empty: no body, no content-type.
  std::string content_type = "application/json";
  std::vector<HeaderField> headers = {};
  std::string body = {};
  // True: the connection is closed after the response.
  bool close = false;
};

// Facts of an answer for the access log and the metrics, beside those that the transport knows. The
// API fills it before the answer ends. "" and nullopt: unknown.
struct AnswerFacts {
  // Pattern that matched, as "/v1/chunks/{chunk_id}".
  std::string route;
  std::string model;
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> cached_tokens;
  std::optional<std::int64_t> completion_tokens;
  std::string grade;
  std::optional<double> queue_ms;
  std::optional<double> first_token_ms;
  std::string finish_reason;
  // `code` of the error that was answered, as "queue_full".
  std::string error_code;
};

// Says how a stream begins and is kept alive.
struct StreamHead {
  // Status, headers and content type of the stream; its body is not read.
  Response head = {};
  // Bytes that are sent after 15 seconds of silence. Empty: nothing is sent.
  std::string ping = {};
};

// Says why nobody reads an answer any more.
// * kClient: the client has closed its connection, or half of it.
// * kSlowReader: the client took no byte for a minute.
// * kShutdown: the server ends.
enum class Gone : std::uint8_t { kClient, kSlowReader, kShutdown };

// The answer to one request: either one response, or a stream of bytes.
//
// An answer ends with send(), end() or fail(), or when the client is gone. Calls on an answer that
// has ended do nothing.
// Threads: the loop's thread alone (Loop::post).
class Answer {
 public:
  Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  virtual ~Answer() = default;

  // Sends the whole response, and ends the answer.
  virtual void send(Response response) = 0;
  // Begins a stream. The head goes out with the first write() or after one second, whichever is
  // first, so that fail() can still refuse with a status.
  virtual void begin(StreamHead head) = 0;
  // Sends bytes of a stream that was begun.
  virtual void write(std::string bytes) = 0;
  // Ends a stream properly.
  virtual void end() = 0;
  // Ends the answer with an error: sends `refusal` where no head has gone out. Otherwise sends
  // `event` and closes the connection.
  virtual void fail(Response refusal, std::string event) = 0;
  // Returns false while more than 1 MiB of a stream is unsent.
  [[nodiscard]] virtual bool writable() const = 0;
  // Says what to call each time that writable() becomes true again. Replaces an earlier one.
  virtual void on_writable(std::function<void()> call) = 0;
  // Says what to call, once, when nobody reads the answer any more. Replaces an earlier one. Called
  // at once where that has already happened; never after the answer has ended otherwise.
  virtual void on_gone(std::function<void(Gone)> call) = 0;
  // Returns the facts to be logged when the answer ends.
  [[nodiscard]] virtual AnswerFacts& facts() = 0;
};

// Takes a request and sees to its answer, now or later. Called by the loop's thread.
using Handler =
    std::function<void(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer)>;

}  // namespace quire::server
