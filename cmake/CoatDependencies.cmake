# Third-party packages as imported targets. `deploy/setup` installs all of them: Debian packages, and from PyPI the
# torch wheel (for libtorch) and googleapis-common-protos (for google/rpc/*.proto).
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
if(COAT_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

if(DEFINED ENV{COAT_DEPS})
  set(_coat_deps $ENV{COAT_DEPS})
else()
  set(_coat_deps $ENV{HOME}/.cache/coat)
endif()
file(GLOB _coat_site ${_coat_deps}/venv/lib/python3*/site-packages)
set(COAT_PYTHON_SITE "${_coat_site}" CACHE PATH "site-packages folder that holds torch and google/rpc/*.proto")

if(COAT_SERVICE)
  find_package(PkgConfig REQUIRED)
  find_package(Protobuf REQUIRED)
  pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
  find_program(COAT_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  find_library(COAT_GRPC_REFLECTION grpc++_reflection REQUIRED)
  find_package(SQLite3 REQUIRED)
  find_package(prometheus-cpp REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(yaml-cpp REQUIRED)
  find_package(CLI11 REQUIRED)
  if(NOT EXISTS ${COAT_PYTHON_SITE}/google/rpc/error_details.proto)
    message(FATAL_ERROR "google/rpc/error_details.proto is not below '${COAT_PYTHON_SITE}': run deploy/setup first")
  endif()
endif()

if(COAT_TRAINER)
  find_package(CLI11 REQUIRED)
  find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # SHA-256 of checkpoints and data
  set(_torch ${COAT_PYTHON_SITE}/torch)
  if(NOT EXISTS ${_torch}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "libtorch is not below '${COAT_PYTHON_SITE}': run deploy/setup first, "
                        "or name the site-packages folder of another torch 2.11 with -DCOAT_PYTHON_SITE=")
  endif()
  # Our own imported targets: the wheel's CMake package demands a CUDA toolkit, and libtorch.so drags CUDA in.
  add_library(coat_libtorch INTERFACE)
  target_include_directories(coat_libtorch SYSTEM INTERFACE ${_torch}/include ${_torch}/include/torch/csrc/api/include)
  target_link_libraries(coat_libtorch INTERFACE ${_torch}/lib/libc10.so ${_torch}/lib/libtorch_cpu.so Threads::Threads)
  # libtorch_cpu finds its two CUDA libraries by its own run path, which --as-needed linking must not demand here.
  target_link_options(coat_libtorch INTERFACE LINKER:--allow-shlib-undefined LINKER:-rpath,${_torch}/lib)
  if(COAT_CUDA)
    # 90a: wgmma and the other instructions of Hopper alone.
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
    set(CMAKE_CUDA_STANDARD 20)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know nvcc's
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit 13 REQUIRED)
    # libtorch_cuda registers its operations when it is loaded: nothing of ours refers to it by name. What it needs
    # itself (cuDNN, cuBLAS, ...) is found when a program starts, not when it is linked.
    # Headers of cuDNN, whose library is loaded by name, and of its frontend, which has no library.
    find_path(COAT_CUDNN_INCLUDE cudnn.h HINTS ${COAT_PYTHON_SITE}/nvidia/cudnn/include)
    find_path(COAT_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${COAT_PYTHON_SITE}/include)
    if(NOT COAT_CUDNN_INCLUDE OR NOT COAT_CUDNN_FRONTEND_INCLUDE)
      message(FATAL_ERROR "cudnn.h or cudnn_frontend.h is not below '${COAT_PYTHON_SITE}': run deploy/setup --for=cuda, or "
                          "install the wheels nvidia-cudnn-cu13 and nvidia-cudnn-frontend beside torch")
    endif()
    add_library(coat_cudnn_frontend INTERFACE)
    target_include_directories(coat_cudnn_frontend SYSTEM INTERFACE ${COAT_CUDNN_INCLUDE} ${COAT_CUDNN_FRONTEND_INCLUDE})
    target_link_libraries(coat_cudnn_frontend INTERFACE ${CMAKE_DL_LIBS})
    add_library(coat_libtorch_cuda INTERFACE)
    target_link_libraries(coat_libtorch_cuda INTERFACE coat_libtorch ${_torch}/lib/libc10_cuda.so CUDA::cudart)
    target_link_options(coat_libtorch_cuda INTERFACE
      LINKER:--push-state,--no-as-needed,${_torch}/lib/libtorch_cuda.so,--pop-state)
  endif()
endif()
