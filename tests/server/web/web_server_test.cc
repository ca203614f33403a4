// Goal: probes, scrapers and people each get what they request, and no one else's names. Method: a
// server on loopback, queried over sockets; its clock is the test's.

#include "server/web/web_server.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/directory/directory_state.h"
#include "server/web/corpus_json.h"
#include "server/web/status_json.h"
#include "server/web/status_page.h"
#include "tests/server/web/scrape.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

using nlohmann::json;
using test::HttpAnswer;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr size_t kPageBytesMax = 100'000;

std::unique_ptr<WebServer> StartServer(Clock* clock = Clock::Real()) {
  auto server = WebServer::Start("127.0.0.1:0", clock);
  CKV_CHECK(server.ok());
  return *std::move(server);
}

TEST(WebServer, ProbesSeeAStartProgressAndAStandstill) {
  ManualClock clock;
  const auto server = StartServer(&clock);
  const auto ask = [&](const char* path) { return HttpAnswer(server->address(), "GET", path); };
  // A store may take minutes to read: alive, and not ready.
  clock.Advance(2 * WebServer::kProgressMax);
  EXPECT_THAT(ask("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask("/readyz"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ask("/metrics"), StartsWith("HTTP/1.1 503"));
  server->Serve({});
  server->Note(false, "no lease yet");
  EXPECT_THAT(ask("/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("no lease yet")));
  server->Note(true, "serves at a:1");
  EXPECT_THAT(ask("/readyz"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("serves at a:1")));
  clock.Advance(WebServer::kProgressMax + std::chrono::seconds(1));
  EXPECT_THAT(ask("/healthz"),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("no progress for 11 s")));
  EXPECT_THAT(ask("/readyz"), StartsWith("HTTP/1.1 503"));
  server->Note(true, "");
  EXPECT_THAT(ask("/healthz"), StartsWith("HTTP/1.1 200"));
  // A drain may take minutes: the process must not be ended for that, and should get no requests.
  server->EndNotes();
  clock.Advance(2 * WebServer::kProgressMax);
  EXPECT_THAT(ask("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask("/readyz"), AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("draining")));
}

TEST(WebServer, OnlyItsPathsAndOnlyReading) {
  const auto server = StartServer();
  server->Serve({});
  const auto ask = [&](const char* method, const char* path) {
    return HttpAnswer(server->address(), method, path);
  };
  const std::string page = ask("GET", "/");
  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("default-src 'none'"),
                          HasSubstr("<title>ckv</title>")));
  EXPECT_THAT(ask("HEAD", "/"), AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("<title>"))));
  EXPECT_THAT(ask("POST", "/status.json"), StartsWith("HTTP/1.1 405"));
  for (const char* path : {"/x", "/../etc/passwd", "/%2e%2e/etc/passwd", "/status.json/x"})
    EXPECT_THAT(ask("GET", path), Not(StartsWith("HTTP/1.1 200"))) << path;
  EXPECT_THAT(ask("GET", "/corpus.json?name=%3Cscript%3E"),
              AllOf(StartsWith("HTTP/1.1 404"), Not(HasSubstr("<script>"))));
}

// Nothing is loaded from elsewhere.
TEST(StatusPage, IsComplete) {
  EXPECT_LT(kStatusPage.size(), 64'000u);
  const std::string page(kStatusPage);
  EXPECT_THAT(page, HasSubstr("</html>"));
  for (const char* elsewhere : {"src=", "https:", "@import", "url("})
    EXPECT_THAT(page, Not(HasSubstr(elsewhere)));
}

// Goal: the page's data stays small in the largest fleet, and names no tenant's corpus.
TEST(StatusJson, IsSmallAndNamesNoTenant) {
  ManualClock clock;  // so that no lease ends, however long the test takes
  DirectoryOptions options;
  options.clock = &clock;
  DirectoryState directory{options};
  for (int i = 0; i < 1000; ++i) {
    const Member member = {.id = {absl::StrCat("holder-with-a-long-name-", i)},
                           .role = MemberRole::kHolder,
                           .control_address = absl::StrCat("host-", i, ".example.net:7400"),
                           .epoch = {}};
    ASSERT_TRUE(directory.Register(member, Duration(0)).ok());
  }
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {1, 1, 1}, /*seed=*/1);
  for (int i = 0; i < 10'000; ++i) {
    const bool hidden = i % 10 == 0;
    Corpus published = corpus.Publish(absl::StrCat(hidden ? "hidden-" : "open-", i),
                                      hidden ? "acme" : "", {{{"h"}}});
    ASSERT_TRUE(directory.Publish(std::move(published), false, 0).ok());
  }
  WebSources sources;
  sources.name = "d";
  sources.directory = &directory;
  const std::string text = StatusJson(sources, true, "serves");
  EXPECT_LT(text.size() + kStatusPage.size(), kPageBytesMax);
  EXPECT_THAT(text, Not(HasSubstr("hidden-")));
  EXPECT_THAT(text, Not(HasSubstr("acme")));
  const json status = json::parse(text);
  EXPECT_EQ(status["directory"]["member_count"], 1000);
  EXPECT_EQ(status["directory"]["members"].size(), kShownMemberCountMax);
  EXPECT_EQ(status["directory"]["corpus_count"], 9000);
  EXPECT_EQ(status["directory"]["tenant_corpus_count"], 1000);
  EXPECT_EQ(status["directory"]["corpora"].size(), kShownCorpusCountMax);
  EXPECT_EQ(status["directory"]["corpora"][0]["copies"], 1);
  EXPECT_TRUE(CorpusJson(sources, "open-1").ok());
  EXPECT_TRUE(absl::IsNotFound(CorpusJson(sources, "hidden-10").status()));
}

TEST(CorpusJson, ACellShowsTheChunkWithTheFewestCopies) {
  Corpus corpus;
  corpus.name = "c";
  const size_t chunk_count = 2 * kShownCellCountMax;  // two chunks a cell
  for (size_t i = 0; i < chunk_count; ++i) {
    ChunkPlacement chunk;
    chunk.token_count = 1;
    chunk.set_holders({{"a"}, {"b"}});
    if (i % 4 == 3) chunk.set_holders({{"b"}, {"a"}});  // the same set
    if (i == 5) chunk.set_holders({{"c"}});
    if (i == 8) chunk.set_leased({{"d"}});
    corpus.chunks.push_back(std::move(chunk));
  }
  const std::string text = MapOfCorpus(corpus);
  EXPECT_LT(text.size(), kPageBytesMax);
  const json map = json::parse(text);
  EXPECT_EQ(map["chunks_per_cell"], 2);
  EXPECT_EQ(map["holders"], json({"a", "b", "c"}));
  EXPECT_EQ(map["groups"], json::parse("[[0,1],[2]]"));
  ASSERT_EQ(map["cells"].size(), kShownCellCountMax);
  EXPECT_EQ(map["cells"][2], 1);  // chunks 4 and 5
  EXPECT_EQ(map["cells"][4], 0);  // chunks 8, which has a copy more, and 9
}

// Goal: any number of holder sets leaves the map small, and known ones are still shown.
TEST(CorpusJson, TooManyGroups) {
  Corpus corpus;
  for (size_t i = 0; i < kShownGroupCountMax + 50; ++i) {
    ChunkPlacement chunk;
    chunk.set_holders({{absl::StrCat("h", i)}});
    corpus.chunks.push_back(std::move(chunk));
  }
  corpus.chunks.push_back(corpus.chunks.front());
  const json map = json::parse(MapOfCorpus(corpus));
  EXPECT_EQ(map["groups"].size(), kShownGroupCountMax);
  EXPECT_EQ(map["cells"][kShownGroupCountMax], -1);
  EXPECT_EQ(map["cells"].back(), 0);
}

}  // namespace
}  // namespace ckv
