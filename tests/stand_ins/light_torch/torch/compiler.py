def is_dynamo_compiling():
    return False
