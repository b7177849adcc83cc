// `quire serve` over an engine that computes nothing, for the cost of HTTP and of the API alone.
//
//   null_serve MODEL PORT     the tokenizer is that of MODEL; port 0 takes a free one
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "api/api.h"
#include "api/metrics.h"
#include "config.h"
#include "loop.h"
#include "message.h"
#include "must.h"
#include "process/process.h"
#include "quire/result.h"
#include "quire/tokenizer.h"
#include "service.h"
#include "testing/null_engine.h"

namespace {

using quire::Status;
using quire::server::Config;

class NullService final : public quire::server::Service {
 public:
  NullService(const std::shared_ptr<const Config>& config, quire::server::Loop& loop)
      : loop_(loop),
        engine_(loop, quire::must(quire::Tokenizer::open(config->model))),
        api_(config, loop) {}

  [[nodiscard]] Status load() override {
    loop_.post([this] { api_.set_engine(engine_); });
    return {};
  }
  void handle(std::shared_ptr<const quire::server::Request> request,
              std::shared_ptr<quire::server::Answer> answer) override {
    api_.handle(std::move(request), std::move(answer));
  }
  void handle_metrics(std::shared_ptr<const quire::server::Request> request,
                      std::shared_ptr<quire::server::Answer> answer) override {
    api_.handle_metrics(std::move(request), std::move(answer));
  }
  void drain() override { api_.services().draining = true; }
  void abort_all() override { api_.abort_all(); }
  void reload(std::shared_ptr<const Config> config) override {
    api_.services().config = std::move(config);
  }
  void count_reload(bool ok) override { api_.services().metrics->count_reload(ok); }
  void observe(const quire::server::AccessRecord& record) override {
    api_.services().metrics->observe(record);
  }
  void set_transport_stats(std::function<quire::server::TransportStats()> stats) override {
    api_.services().transport_stats = std::move(stats);
  }
  void close() override {}

 private:
  quire::server::Loop& loop_;
  quire::server::NullEngine engine_;
  quire::server::Api api_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: null_serve MODEL PORT\n");
    return 2;
  }
  auto config = std::make_shared<Config>();
  config->model = argv[1];
  config->port = static_cast<std::uint16_t>(std::strtoul(argv[2], nullptr, 10));
  config->max_inflight = 1 << 20;
  config->access_log = "off";
  const auto error = quire::server::run_server(
      {.config = config,
       .reread = [config] { return quire::Result<std::shared_ptr<const Config>>(config); },
       .make = [](const auto& given, auto& loop) -> std::unique_ptr<quire::server::Service> {
         return std::make_unique<NullService>(given, loop);
       }});
  std::fprintf(stderr, "error: %s\n", error.message.c_str());
  return 1;
}
