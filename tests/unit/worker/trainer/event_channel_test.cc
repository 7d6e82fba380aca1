#include "worker/trainer/event_channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"
#include "tests/unit/worker/trainer/program.h"
#include "worker/trainer/command_listener.h"

namespace coat::trainer {
namespace {

TEST(EventChannel, WritesEveryLineInOrderBeforeItEnds) {
  const coat::testing::TemporaryFolder folder;
  const std::string path = folder / "events";
  {
    EventChannel channel(::open(path.c_str(), O_WRONLY | O_CREAT, 0600), true);
    for (int i = 0; i < 5000; ++i) channel.send(protocol::Checkpoint{.step = i, .path = "p"});
  }
  const auto checkpoints = events_of<protocol::Checkpoint>(parse_events(coat::testing::read_file(path)));
  ASSERT_EQ(checkpoints.size(), 5000u);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(checkpoints[static_cast<std::size_t>(i)].step, i);
}

// More than a socket's buffer holds: sending never waits for the reader, and the reader gets every byte.
TEST(EventChannel, ASlowReaderHoldsNobodyUp) {
  SocketPair sockets;
  const std::string path(10'000, 'p');
  std::thread reader;
  {
    EventChannel channel(sockets.trainer, false);
    for (int i = 0; i < 500; ++i) channel.send(protocol::Checkpoint{.step = i, .path = path});
    reader = std::thread([&] {
      LineReader lines(sockets.agent);
      for (int i = 0; i < 500; ++i) {
        const std::string line = lines.next();
        ASSERT_FALSE(line.empty());
        EXPECT_EQ(std::get<protocol::Checkpoint>(protocol::parse_event(line)).step, i);
      }
    });
  }
  reader.join();
}

TEST(EventChannel, AReaderThatIsGoneIsNoFailure) {
  SocketPair sockets;
  sockets.close_agent();
  EventChannel channel(sockets.trainer, false);
  for (int i = 0; i < 100; ++i) channel.send(protocol::Checkpoint{.step = i});
}

TEST(CommandListener, ObeysAndReportsWhatItDoesNotKnow) {
  SocketPair sockets;
  train::RunControl control;
  std::mutex mutex;
  std::vector<std::string> warnings;
  CommandListener listener(sockets.trainer, control, [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  });
  const auto write = [&](const std::string& text) {
    ASSERT_EQ(::write(sockets.agent, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  write("{\"command\":\"dance\"}\n" + protocol::to_line(protocol::Command{protocol::SaveCheckpoint{}}) +
        "\n{\"comm");
  EXPECT_TRUE(eventually([&] { return control.take_checkpoint_request(); }));
  EXPECT_FALSE(control.stop_requested());
  write("and\":\"stop_after_checkpoint\"}\n");
  EXPECT_TRUE(eventually([&] { return control.stop_requested(); }));
  const std::lock_guard lock(mutex);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("dance"), std::string::npos);
}

TEST(CommandListener, TheAgentsEndStopsNothing) {
  SocketPair sockets;
  train::RunControl control;
  {
    CommandListener listener(sockets.trainer, control, [](const std::string&) {});
    sockets.close_agent();
  }
  EXPECT_FALSE(control.stop_requested());
}

}  // namespace
}  // namespace coat::trainer
