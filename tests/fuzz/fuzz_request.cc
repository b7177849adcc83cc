// Requests of the server: any bytes on a connection, and any request without one, are answered or
// refused in bounded time. None is answered with a 500, and none leaves something behind.
//
// Input: bytes of a client; or `#`, a line with method and target, and a body. The engine computes
// nothing.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/api.h"
#include "config.h"
#include "http/gate.h"
#include "http/http_server.h"
#include "message.h"
#include "service.h"
#include "testing/fake_channel.h"
#include "testing/manual_loop.h"
#include "testing/mutated_requests.h"
#include "testing/null_engine.h"
#include "testing/recorded_answer.h"

namespace quire::server {
namespace {

void want(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
  }
}

void want_status(int status) {
  const bool allowed = status < 500 || status == 501 || status == 503 || status == 504 ||
                       status == 505 || status == 529;
  want(allowed, "an answer is the server's fault");
}

class Site {
 public:
  Site() { api_.set_engine(engine_); }

  // Sends bytes in pieces, closes the client's half, and lets all times pass.
  void connect(std::string_view bytes) {
    const auto wire = std::make_shared<FakeWire>();
    server_.accept({.port = 8000}, handler_, std::make_unique<FakeChannel>(loop_, wire), "fuzz:1");
    const std::size_t piece = bytes.size() % 3 == 0 ? bytes.size() : 17;
    while (!bytes.empty()) {
      const std::string_view part = bytes.substr(0, piece);
      bytes.remove_prefix(part.size());
      wire->to_server += part;
      FakeChannel::wake(loop_, *wire);
      loop_.run();
    }
    loop_.advance(std::chrono::milliseconds(8));
    wire->client_ended = true;
    FakeChannel::wake(loop_, *wire);
    loop_.advance(std::chrono::minutes(3));
    want(wire->closed, "a connection is still open");
    want(server_.stats().idle + server_.stats().active == 0, "a connection is counted");
  }
  void ask(std::string_view bytes) {
    const auto answer = std::make_shared<RecordedAnswer>();
    api_.handle(std::make_shared<const Request>(request_of_bytes(bytes)), answer);
    loop_.advance(std::chrono::milliseconds(8));
    if (!answer->over) {
      answer->leave();
      loop_.run();
    } else if (answer->response) {
      want_status(answer->response->status);
      want(answer->response->status >= 200, "an answer has no status");
    }
  }
  void look() {
    want(engine_.running == 0, "a generation runs");
    want(api_.services().runs.empty(), "a request runs");
    engine_.requests.clear();
  }

 private:
  static std::shared_ptr<const Config> config() {
    auto config = std::make_shared<Config>();
    config->model = QUIRE_SOURCE_DIR "/models/cardfile/model";
    config->alias = {"cardfile"};
    return config;
  }

  ManualLoop loop_;
  NullEngine engine_{loop_, Tokenizer::open(config()->model).value()};
  Api api_{config(), loop_};
  Handler handler_ = [this](auto request, auto answer) {
    api_.handle(std::move(request), std::move(answer));
  };
  HttpServer server_{loop_, config(),
                     [](const AccessRecord& record) { want_status(record.status); },
                     [](const char* what) { want(false, what); }};
};

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static quire::server::Site site;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as text
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.starts_with('#')) {
    site.ask(bytes.substr(1));
  } else {
    site.connect(bytes);
  }
  site.look();
  return 0;
}
