// docs/openapi.json and docs/http.md say what the tables say. QUIRE_UPDATE_DOCS=1 writes them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "api/openapi.h"
#include "testing/api_fixture.h"

namespace quire::server {
namespace {

using ApiDocs = NullApiTest;

constexpr const char* kMark = "<!-- The tables of the server make what follows. -->\n";

std::string file_text(const std::string& path) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR "/") + path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_file(const std::string& path, const std::string& text) {
  if (std::getenv("QUIRE_UPDATE_DOCS") != nullptr) {
    std::ofstream(std::string(QUIRE_SOURCE_DIR "/") + path, std::ios::binary) << text;
  }
  EXPECT_TRUE(file_text(path) == text)
      << path << " is not up to date: run server_test with QUIRE_UPDATE_DOCS=1";
}

TEST_F(ApiDocs, OpenapiFileIsWhatTheTablesSay) {
  expect_file("docs/openapi.json", pretty_json(openapi_json(api_.services().router)));
}

TEST_F(ApiDocs, HttpPageIsWhatTheTablesSay) {
  const std::string page = file_text("docs/http.md");
  const std::size_t at = page.find(kMark);
  ASSERT_NE(at, std::string::npos);
  expect_file("docs/http.md",
              page.substr(0, at) + kMark + "\n" + http_page(api_.services().router));
}

TEST_F(ApiDocs, OpenapiListsEveryRouteAndNoOther) {
  const json::value root = body_of(*client_.get("/openapi.json"));
  std::set<std::string> described;
  for (const auto& path : root.at("paths").as_object()) {
    for (const auto& method : path.value().as_object()) {
      described.insert(std::string(method.key()) + " " + std::string(path.key()));
    }
  }
  std::set<std::string> routed;
  for (const Endpoint* const endpoint : api_.services().router.endpoints()) {
    if (std::string_view(endpoint->method) == "*") {
      continue;
    }
    std::string method = endpoint->method;
    std::string path = endpoint->pattern;
    for (char& c : method) {
      c = static_cast<char>(c | 32);
    }
    if (const auto dots = path.find("..."); dots != std::string::npos) {
      path.erase(dots, 3);
    }
    routed.insert(method + " " + path);
  }
  EXPECT_EQ(described, routed);
}

TEST_F(ApiDocs, EverySchemaThatIsNamedIsThere) {
  const json::value root = body_of(*client_.get("/openapi.json"));
  const std::string text = json::serialize(root);
  const json::object& schemas = root.at("components").at("schemas").as_object();
  const std::string prefix = "#/components/schemas/";
  for (std::size_t at = text.find(prefix); at != std::string::npos;
       at = text.find(prefix, at + 1)) {
    const std::size_t begin = at + prefix.size();
    const std::string name = text.substr(begin, text.find('"', begin) - begin);
    EXPECT_TRUE(schemas.contains(name)) << name;
  }
}

}  // namespace
}  // namespace quire::server
