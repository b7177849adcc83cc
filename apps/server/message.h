// Request, Response and Answer: the interface between the transport and the API. It knows no
// sockets, so tests of the API need none.
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

// A well-formed HTTP request whose head and body were read. Plain data.
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
  // Tenant and role that ask. The transport checks keys before routing, so it is then never null.
  // It is null on a path that needs no key when the client gave none.
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
// API fills them before the answer ends. "" and nullopt: unknown.
struct AnswerFacts {
  // Pattern of the endpoint, such as "/v1/chunks/{chunk_id}".
  std::string route;
  std::string model;
  std::optional<std::int64_t> prompt_tokens;
  std::optional<std::int64_t> cached_tokens;
  std::optional<std::int64_t> completion_tokens;
  std::string grade;
  std::optional<double> queue_ms;
  std::optional<double> first_token_ms;
  std::string finish_reason;
  // `code` of the error in the answer, such as "queue_full".
  std::string error_code;
};

// The beginning of a stream, and its pings.
struct StreamHead {
  // Status, headers and content type of the stream; its body is not read.
  Response head = {};
  // Bytes that are sent after 15 seconds of silence. Empty: nothing is sent.
  std::string ping = {};
};

// Reasons why nobody reads an answer any more.
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
  // Begins a stream. The head goes out with the first write() or after one second, whichever comes
  // first. Until then fail() can still refuse with a status.
  virtual void begin(StreamHead head) = 0;
  // Sends bytes of a stream. Precondition: begin().
  virtual void write(std::string bytes) = 0;
  // Ends a stream properly.
  virtual void end() = 0;
  // Ends the answer with an error. Sends `refusal` if no head has gone out, else sends `event` and
  // closes the connection.
  virtual void fail(Response refusal, std::string event) = 0;
  // Returns false while more than 1 MiB of a stream is unsent.
  [[nodiscard]] virtual bool writable() const = 0;
  // Sets the call for each time that writable() becomes true again. Replaces an earlier one.
  virtual void on_writable(std::function<void()> call) = 0;
  // Sets the call for when nobody reads the answer any more; it comes once. Replaces an earlier
  // one. Calls at once if that has already happened, and never after the answer has ended
  // otherwise.
  virtual void on_gone(std::function<void(Gone)> call) = 0;
  // Returns the facts to log when the answer ends.
  [[nodiscard]] virtual AnswerFacts& facts() = 0;
};

// Takes a request and answers it, now or later. The loop's thread calls it.
using Handler =
    std::function<void(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer)>;

}  // namespace quire::server
