import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    @staticmethod
    def answer(request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", given.as_numpy())])
