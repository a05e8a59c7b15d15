from pydrive.auth import GoogleAuth

GoogleDrive = GoogleDriveFile = GoogleDriveFileList = GoogleAuth
