// Service over Api and LlmEngine.
#include "service.h"

#include <functional>
#include <memory>
#include <utility>

#include "api/api.h"
#include "api/llm_engine.h"
#include "api/metrics.h"
#include "config.h"
#include "loop.h"
#include "message.h"
#include "quire/result.h"

namespace quire::server {
namespace {

class ApiService final : public Service {
 public:
  ApiService(std::shared_ptr<const Config> config, Loop& loop)
      : config_(config), loop_(loop), api_(std::move(config), loop) {}

  [[nodiscard]] Status load() override {
    QUIRE_TRY(engine_, LlmEngine::open(*config_));
    loop_.post([this] { api_.set_engine(*engine_); });
    return {};
  }
  void handle(std::shared_ptr<const Request> request, std::shared_ptr<Answer> answer) override {
    api_.handle(std::move(request), std::move(answer));
  }
  void handle_metrics(std::shared_ptr<const Request> request,
                      std::shared_ptr<Answer> answer) override {
    api_.handle_metrics(std::move(request), std::move(answer));
  }
  void drain() override { api_.services().draining = true; }
  void abort_all() override { api_.abort_all(); }
  void reload(std::shared_ptr<const Config> config) override {
    api_.services().config = std::move(config);
  }
  void count_reload(bool ok) override { api_.services().metrics->count_reload(ok); }
  void observe(const AccessRecord& record) override { api_.services().metrics->observe(record); }
  void set_transport_stats(std::function<TransportStats()> stats) override {
    api_.services().transport_stats = std::move(stats);
  }
  void close() override {
    if (engine_ != nullptr) {
      (void)engine_->chunks()->flush_store().ok();
      engine_->chunks()->llm().close();
    }
  }

 private:
  std::shared_ptr<const Config> config_;
  Loop& loop_;
  std::unique_ptr<LlmEngine> engine_;
  Api api_;
};

}  // namespace

std::unique_ptr<Service> make_service(std::shared_ptr<const Config> config, Loop& loop) {
  return std::make_unique<ApiService>(std::move(config), loop);
}

}  // namespace quire::server
